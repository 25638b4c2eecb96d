package sink

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

func secretOf(size int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", size)))
}

func TestValidConfigsAreAccepted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"http://localhost",
		"https://example.com/hooks/{key}/in?user={key}&again={key}",
		"https://name:pass%40word@example.com:8443/a%2Fb/ü x?q=ü x",
		"http://[::1]:8080/?{key}",
		"HTTPS://example.com/",
	} {
		c := WebhookConfig{URL: url, Secrets: []string{secretOf(24), secretOf(64)}, Timeout: time.Second}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestFaultyURLsAreToldWithRemedy(t *testing.T) {
	t.Parallel()
	tests := []struct{ url, want string }{
		{"", "is empty: set it"},
		{"example.com/hook", `is "example.com/...": it must start with https:// or http://`},
		{"localhost:8080", `is "localhost:8080": it must start with`},
		{"ftp://example.com", "it must start with"},
		{"https://", "it names no host"},
		{"https:///path", "it names no host"},
		{"http://:8080/", "it names no host"},
		{"http://example.com:0/", "the port must be from 1 to 65535"},
		{"http://example.com:65536/", "the port must be from 1 to 65535"},
		{"http://example.com:x/", "it isn't a URL"},
		{"https://example.com/a#b", "remove the #"},
		{"https://example.com/a#", "remove the #"},
		{"https://{key}.example.com/", "{key} may stand in the path and the query only"},
		{"https://example.com:{key}/", "{key} may stand in the path and the query only"},
		{"https://{key}:pw@example.com/", "{key} may stand in the path and the query only"},
		{"{key}://example.com/", "{key} may stand in the path and the query only"},
		{"https://example.com/#{key}", "remove the #"},
		{"https://example.com/{Key}", "{key} is the only word"},
		{"https://example.com/?a={user}", "{key} is the only word"},
		{"https://example.com/%{key}", "it isn't a URL"},
		{"https://exa mple.com/", "it isn't a URL"},
		{"https://example.com/a\nb", "it isn't a URL"},
	}
	for _, tt := range tests {
		err := WebhookConfig{URL: tt.url, Timeout: time.Second}.Validate()
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "SLUICE_WEBHOOK_URL ") {
			t.Errorf("%q: got %v, want ... %s ...", tt.url, err, tt.want)
		}
	}
}

func TestFaultySecretsAreToldByPlace(t *testing.T) {
	t.Parallel()
	tests := []struct{ secret, want string }{
		{"", "secret 2 of 2 is empty"},
		{"hunter2hunter2hunter2hunter2hunt", "secret 2 of 2 doesn't start with whsec_"},
		{"whsec_", "secret 2 of 2 has 0 bytes"},
		{"whsec_hunter2!", "secret 2 of 2 isn't base64"},
		{"whsec_hunter2hunter2hunter2hunter2hunte", "secret 2 of 2 isn't base64"},
		{secretOf(23), "secret 2 of 2 has 23 bytes"},
		{secretOf(65), "secret 2 of 2 has 65 bytes"},
	}
	for _, tt := range tests {
		err := WebhookConfig{URL: "http://localhost", Secrets: []string{secretOf(32), tt.secret}, Timeout: time.Second}.Validate()
		if err == nil || !strings.Contains(err.Error(), "SLUICE_WEBHOOK_SECRETS: "+tt.want) {
			t.Errorf("%q: got %v, want ... %s ...", tt.secret, err, tt.want)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "a2tra2") {
			t.Errorf("%q shows in %v", tt.secret, err)
		}
	}
}

func TestAllFaultsAreToldAtOnceWithoutSecrets(t *testing.T) {
	t.Parallel()
	c := WebhookConfig{URL: "ftp://someone:hunter2@example.com:0/pathtoken?q=querytoken", Secrets: []string{"hunter2", "hunter3"}, Timeout: -time.Second, ConnLife: -1}
	err := c.Validate()
	if err == nil {
		t.Fatal("no fault")
	}
	for _, want := range []string{
		"SLUICE_WEBHOOK_URL", "must start with", "the port",
		"secret 1 of 2", "secret 2 of 2", "SLUICE_WEBHOOK_TIMEOUT is -1s: set a time above 0", "SLUICE_WEBHOOK_CONN_LIFE is -1ns",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q isn't in\n%v", want, err)
		}
	}
	for _, secret := range []string{"someone", "hunter", "pathtoken", "querytoken"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q is in\n%v", secret, err)
		}
	}
	if _, got := NewWebhook(c, "x"); got == nil || got.Error() != err.Error() {
		t.Errorf("NewWebhook says %v, Validate %v", got, err)
	}
	for _, raw := range []string{"http://someone:hun/ter2@example.com", "https:/host/hunter2", "https://host?hunter2{", "//someone:hunter2@host"} {
		err := WebhookConfig{URL: raw, Timeout: 1}.Validate()
		if err == nil || strings.Contains(err.Error(), "hun") || strings.Contains(err.Error(), "ter2") || strings.Contains(err.Error(), "someone") {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestURLWithFragmentShowsNoPassword(t *testing.T) {
	err := WebhookConfig{URL: "https://:hunter2#x@example.com/", Timeout: time.Second}.Validate()
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v, want one without the password", err)
	}
}
