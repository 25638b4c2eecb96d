package verify

// The fields of custom resources that the manifests use, by the definitions of KEDA 2.17, the Prometheus Operator 0.80 and
// NACK 0.19. Their own packages would bring client libraries of Kubernetes along.

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type scaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicaCount *int32 `json:"minReplicaCount"`
		MaxReplicaCount *int32 `json:"maxReplicaCount"`
		PollingInterval *int32 `json:"pollingInterval"`
		Fallback        struct {
			FailureThreshold int32  `json:"failureThreshold"`
			Replicas         int32  `json:"replicas"`
			Behavior         string `json:"behavior"`
		} `json:"fallback"`
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior struct {
					ScaleUp   scalingRules `json:"scaleUp"`
					ScaleDown scalingRules `json:"scaleDown"`
				} `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type       string            `json:"type"`
			MetricType string            `json:"metricType"`
			Metadata   map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

type scalingRules struct {
	StabilizationWindowSeconds int32 `json:"stabilizationWindowSeconds"`
	Policies                   []struct {
		Type          string `json:"type"`
		Value         int32  `json:"value"`
		PeriodSeconds int32  `json:"periodSeconds"`
	} `json:"policies"`
}

type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"endpoints"`
	} `json:"spec"`
}

type natsStream struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Name            string   `json:"name"`
		Description     string   `json:"description"`
		Subjects        []string `json:"subjects"`
		Retention       string   `json:"retention"`
		Storage         string   `json:"storage"`
		Discard         string   `json:"discard"`
		MaxBytes        *int64   `json:"maxBytes"`
		Replicas        int      `json:"replicas"`
		DuplicateWindow string   `json:"duplicateWindow"`
		AllowDirect     bool     `json:"allowDirect"`
		PreventDelete   bool     `json:"preventDelete"`
	} `json:"spec"`
}

type natsConsumer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		StreamName     string   `json:"streamName"`
		DurableName    string   `json:"durableName"`
		Description    string   `json:"description"`
		DeliverPolicy  string   `json:"deliverPolicy"`
		AckPolicy      string   `json:"ackPolicy"`
		AckWait        string   `json:"ackWait"`
		MaxDeliver     int      `json:"maxDeliver"`
		MaxAckPending  int      `json:"maxAckPending"`
		MaxWaiting     int      `json:"maxWaiting"`
		FilterSubjects []string `json:"filterSubjects"`
		PreventDelete  bool     `json:"preventDelete"`
	} `json:"spec"`
}

type natsBucket struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Bucket        string `json:"bucket"`
		Description   string `json:"description"`
		History       uint8  `json:"history"`
		MaxValueSize  int32  `json:"maxValueSize"`
		Storage       string `json:"storage"`
		Replicas      int    `json:"replicas"`
		PreventDelete bool   `json:"preventDelete"`
	} `json:"spec"`
}
