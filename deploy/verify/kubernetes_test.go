package verify

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// cluster is what an overlay renders, decoded strictly.
type cluster struct {
	deployment appsv1.Deployment
	settings   corev1.ConfigMap
	service    corev1.Service
	budget     policyv1.PodDisruptionBudget
	network    networkingv1.NetworkPolicy
	namespace  corev1.Namespace
	account    corev1.ServiceAccount

	scaled    scaledObject
	monitor   serviceMonitor
	streams   []natsStream
	consumers []natsConsumer
	buckets   []natsBucket
}

// render builds a kustomization and decodes what comes out. A kind it doesn't know is an error.
func render(t *testing.T, kustomization string) *cluster {
	t.Helper()
	path := filepath.Join(top, "deploy/kubernetes", kustomization)
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{}
	into := map[string]any{
		"apps/v1 Deployment": &c.deployment, "v1 ConfigMap": &c.settings, "v1 Service": &c.service, "v1 Namespace": &c.namespace,
		"policy/v1 PodDisruptionBudget": &c.budget, "networking.k8s.io/v1 NetworkPolicy": &c.network, "v1 ServiceAccount": &c.account,
		"keda.sh/v1alpha1 ScaledObject": &c.scaled, "monitoring.coreos.com/v1 ServiceMonitor": &c.monitor,
	}
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		kind := strings.TrimPrefix(r.GetApiVersion()+" "+r.GetKind(), "/")
		what := kustomization + ": " + kind + " " + r.GetName()
		if kind != "v1 Namespace" && r.GetNamespace() != "sluice" {
			t.Errorf("%s is in namespace %q", what, r.GetNamespace())
		}
		switch kind {
		case "jetstream.nats.io/v1beta2 Stream":
			c.streams = append(c.streams, natsStream{})
			into[kind] = &c.streams[len(c.streams)-1]
		case "jetstream.nats.io/v1beta2 Consumer":
			c.consumers = append(c.consumers, natsConsumer{})
			into[kind] = &c.consumers[len(c.consumers)-1]
		case "jetstream.nats.io/v1beta2 KeyValue":
			c.buckets = append(c.buckets, natsBucket{})
			into[kind] = &c.buckets[len(c.buckets)-1]
		}
		if into[kind] == nil {
			t.Errorf("%s: nothing is known of this kind, or there are two", what)
			continue
		}
		strictly(t, what, text, into[kind])
		delete(into, kind)
	}
	return c
}

var overlays = []string{"overlays/small", "overlays/production"}

func TestManifestsAreWhatKubernetesTakes(t *testing.T) {
	t.Parallel()
	render(t, "base")
	for _, overlay := range overlays {
		c := render(t, overlay)
		pod := c.deployment.Spec.Template
		for what, selector := range map[string]map[string]string{
			"the deployment": c.deployment.Spec.Selector.MatchLabels, "the service": c.service.Spec.Selector,
			"the disruption budget": c.budget.Spec.Selector.MatchLabels, "the network policy": c.network.Spec.PodSelector.MatchLabels,
			"the spread": pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
		} {
			if len(selector) == 0 || selector["app.kubernetes.io/name"] != pod.Labels["app.kubernetes.io/name"] {
				t.Errorf("%s: %s selects %v, the pods have %v", overlay, what, selector, pod.Labels)
			}
		}
		if pod.Spec.ServiceAccountName != c.account.Name {
			t.Errorf("%s: pods run as %q, which isn't there", overlay, pod.Spec.ServiceAccountName)
		}
		if c.budget.Spec.MaxUnavailable == nil || c.budget.Spec.MaxUnavailable.IntValue() != 1 || c.budget.Spec.MinAvailable != nil {
			t.Errorf("%s: a single worker's node couldn't be drained", overlay)
		}
	}
}

func TestPodsHaveNoRightsAndNoSurprises(t *testing.T) {
	t.Parallel()
	for _, overlay := range overlays {
		c := render(t, overlay)
		pod := c.deployment.Spec.Template.Spec
		worker := pod.Containers[0]
		isFalse := func(b *bool) bool { return b != nil && !*b }
		isTrue := func(b *bool) bool { return b != nil && *b }
		for what, ok := range map[string]bool{
			"variables of services are injected": isFalse(pod.EnableServiceLinks),
			"a token is mounted":                 isFalse(pod.AutomountServiceAccountToken),
			"may run as root":                    isTrue(pod.SecurityContext.RunAsNonRoot) && *pod.SecurityContext.RunAsUser > 0,
			"has no seccomp profile":             pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
			"may gain rights":                    isFalse(worker.SecurityContext.AllowPrivilegeEscalation),
			"may write to its image":             isTrue(worker.SecurityContext.ReadOnlyRootFilesystem),
			"has capabilities": len(worker.SecurityContext.Capabilities.Drop) == 1 &&
				worker.SecurityContext.Capabilities.Drop[0] == "ALL" && len(worker.SecurityContext.Capabilities.Add) == 0,
			"has no bound of memory":    !worker.Resources.Limits.Memory().IsZero() && !worker.Resources.Requests.Memory().IsZero(),
			"asks for no CPU":           !worker.Resources.Requests.Cpu().IsZero(),
			"is throttled":              worker.Resources.Limits.Cpu().IsZero(),
			"isn't of one version":      strings.Contains(worker.Image, ":v"),
			"isn't spread over nodes":   len(pod.TopologySpreadConstraints) == 2,
			"lacks a probe":             worker.LivenessProbe != nil && worker.ReadinessProbe != nil && worker.StartupProbe != nil,
			"isn't ready by readyz":     worker.ReadinessProbe.HTTPGet.Path == "/readyz",
			"is restarted by readiness": worker.LivenessProbe.HTTPGet.Path == "/healthz",
		} {
			if !ok {
				t.Errorf("%s: a pod %s", overlay, what)
			}
		}
	}
}

func TestWorkersTakeTheSettingsOfTheManifests(t *testing.T) {
	t.Parallel()
	for _, overlay := range overlays {
		c := render(t, overlay)
		pod := c.deployment.Spec.Template.Spec
		if from := pod.Containers[0].EnvFrom; len(from) != 1 || from[0].ConfigMapRef.Name != c.settings.Name {
			t.Errorf("%s: the pods don't read %s", overlay, c.settings.Name)
		}
		takes(t, c.settings.Data)
		drain := duration(t, c.settings.Data, "DRAIN_TIMEOUT")
		if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < drain+closing {
			t.Errorf("%s: pods are killed after %v; draining takes %v and closing up to %v", overlay, grace, drain, closing)
		}
		for name, value := range c.settings.Data {
			if !strings.HasPrefix(value, "/") {
				continue
			}
			mounts := pod.Containers[0].VolumeMounts
			if len(mounts) != 1 || filepath.Dir(value) != mounts[0].MountPath {
				t.Errorf("%s: %s=%s isn't mounted", overlay, name, value)
			}
		}
	}
}

// A label that is put into all selectors would be put into those of other pods, too.
func TestNetworkPolicyLetsWorkersReachTheirServers(t *testing.T) {
	t.Parallel()
	policy := render(t, "overlays/production").network.Spec
	reached := map[string]int32{}
	for _, rule := range policy.Egress {
		for _, to := range rule.To {
			if to.PodSelector != nil {
				reached[to.PodSelector.MatchLabels["app.kubernetes.io/name"]] = rule.Ports[0].Port.IntVal
			}
			if to.IPBlock != nil {
				reached[to.IPBlock.CIDR] = rule.Ports[0].Port.IntVal
				if len(to.IPBlock.Except) == 0 {
					t.Errorf("receivers in private networks and the metadata service can be reached by %s", to.IPBlock.CIDR)
				}
			}
		}
	}
	for server, port := range map[string]int32{"nats": 4222, "redis": 6379, "0.0.0.0/0": 443, "::/0": 443} {
		if reached[server] != port {
			t.Errorf("%s is reached at port %d, want %d", server, reached[server], port)
		}
	}
	if len(policy.PolicyTypes) != 2 || len(policy.Ingress) != 1 {
		t.Errorf("policy of %v with %d rules for what comes in", policy.PolicyTypes, len(policy.Ingress))
	}
}
