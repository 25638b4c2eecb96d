package sink

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// What the Standard Webhooks specification says of a secret. The library checks neither the prefix nor the size.
const (
	secretPrefix   = "whsec_"
	minSecretBytes = 24
	maxSecretBytes = 64
)

// signer signs pushes with one or more secrets, so that a receiver can go from one to the next without a gap.
type signer []*standardwebhooks.Webhook

// newSigner reads the secrets in signing order. No secrets make a signer that signs nothing. The errors name secrets by
// their place only.
func newSigner(secrets []string) (signer, error) {
	var s signer
	var faults []error
	for i, secret := range secrets {
		key, err := parseSecret(secret)
		if err != nil {
			faults = append(faults, fmt.Errorf("SLUICE_WEBHOOK_SECRETS: secret %d of %d %w: write whsec_ and the base64 of"+
				" %d to %d random bytes, such as made by: echo whsec_$(openssl rand -base64 32)",
				i+1, len(secrets), err, minSecretBytes, maxSecretBytes))
			continue
		}
		// A key of raw bytes is never refused.
		w, _ := standardwebhooks.NewWebhookRaw(key)
		s = append(s, w)
	}
	return s, errors.Join(faults...)
}

// signerOf answers the signer of a push.
func signerOf(cfg WebhookConfig) func() signer {
	type made struct {
		of     []string
		signer signer
	}
	first, _ := newSigner(cfg.Secrets)
	if cfg.SecretsNow == nil {
		return func() signer { return first }
	}
	var last atomic.Pointer[made]
	last.Store(&made{cfg.Secrets, first})
	return func() signer {
		now, was := cfg.SecretsNow(), last.Load()
		if slices.Equal(now, was.of) {
			return was.signer
		}
		s, err := newSigner(now)
		if err != nil {
			return was.signer
		}
		last.Store(&made{now, s})
		return s
	}
}

func parseSecret(secret string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(secret, secretPrefix)
	switch {
	case secret == "":
		return nil, errors.New("is empty")
	case !ok:
		return nil, errors.New("doesn't start with whsec_")
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errors.New("isn't base64 after whsec_") // the decoder's own text would tell a part of it
	}
	if len(key) < minSecretBytes || len(key) > maxSecretBytes {
		return nil, fmt.Errorf("has %d bytes", len(key))
	}
	return key, nil
}

// sign returns the value of the webhook-signature header: one signature per secret, separated by spaces.
func (s signer) sign(id string, at time.Time, body []byte) (string, error) {
	signatures := make([]string, len(s))
	for i, w := range s {
		signature, err := w.Sign(id, at, body)
		if err != nil {
			return "", fmt.Errorf("signing: %w", err)
		}
		signatures[i] = signature
	}
	return strings.Join(signatures, " "), nil
}
