package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sluice/pipeline/freshfile"
	"sluice/sink"
)

func (cfg Config) webhook(log *slog.Logger) (*sink.Webhook, error) {
	c, err := cfg.hook(log)
	if err != nil {
		return nil, err
	}
	return sink.NewWebhook(c, "sluice/"+buildInfo().Version)
}

// hook is what the settings say of the webhook. What comes from files is read again when they change, which log is told.
func (cfg Config) hook(log *slog.Logger) (sink.WebhookConfig, error) {
	c := sink.WebhookConfig{
		URL: string(cfg.Webhook.URL), Timeout: cfg.Webhook.Timeout, ConnLife: cfg.Webhook.ConnLife, Concurrency: cfg.Concurrency,
	}
	for _, s := range cfg.Webhook.Secrets {
		c.Secrets = append(c.Secrets, string(s))
	}
	if path := cfg.Webhook.SecretsFile; path != "" {
		c.SecretsNow = freshfile.New(c.Secrets, log, "SLUICE_WEBHOOK_SECRETS_FILE", parseHookSecrets, path).Now
	}
	files, err := cfg.Webhook.TLS.open(log, "SLUICE_WEBHOOK_TLS_…")
	if err != nil {
		return c, fmt.Errorf("SLUICE_WEBHOOK_TLS_…: %w", err)
	}
	if files != nil {
		c.TLS = files.Await
	}
	return c, nil
}

func parseHookSecrets(texts []string) ([]string, error) {
	secrets := hookSecrets(texts[0])
	if len(secrets) == 0 {
		return nil, errors.New("is empty") // pushes aren't left unsigned by an empty file
	}
	return secrets, sink.WebhookConfig{URL: "http://127.0.0.1/", Secrets: secrets, Timeout: time.Second}.Validate()
}
