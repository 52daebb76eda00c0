package onpath

import (
	"net/url"
	"strings"
)

// Webhook has notifications of its tenant sent to an HTTP server, each signed as Standard
// Webhooks say (standardwebhooks.com). The server makes the secret; no object has it.
type Webhook struct {
	TypeMeta
	Metadata Metadata    `json:"metadata"`
	Spec     WebhookSpec `json:"spec"`
}

// WebhookSpec says where to, and what is sent.
type WebhookSpec struct {
	// URL that is posted to, http or https. Its address must be public, or one that the
	// operator allows in the server's configuration (webhookTargets).
	URL string `json:"url"`
	// Level is the lowest one that is sent: info (default), warning or critical.
	Level NotificationLevel `json:"level,omitempty"`
	// SecretVersion chooses the secret: another number, another secret.
	SecretVersion int `json:"secretVersion,omitempty"`
}

// MaxWebhooks is how many a tenant may have.
const MaxWebhooks = 10

const maxWebhookURL = 2048 // bytes

// WebhookState is how a Webhook fares, with the secret that its receiver needs.
type WebhookState struct {
	Secret string `json:"secret,omitempty"` // whsec_ and base64
	// Sent, and those given up after a day, since the Webhook was made.
	Sent    uint64 `json:"sent"`
	Dropped uint64 `json:"dropped"`
	// Failures are the attempts that failed since the last one that did not; Message says
	// why the last one failed.
	Failures int    `json:"failures"`
	Message  string `json:"message,omitempty"`
}

// Meta implements Object.
func (w *Webhook) Meta() *Metadata { return &w.Metadata }

// ObjectKind implements Object.
func (w *Webhook) ObjectKind() Kind { return KindWebhook }

// Validate implements Object.
func (w *Webhook) Validate() error {
	v := begin(w, &w.TypeMeta)
	const remedy = "write a URL such as https://example.com/onpath"
	u, err := url.Parse(w.Spec.URL)
	switch {
	case w.Spec.URL == "":
		v.add("spec.url", remedy, "is missing")
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "":
		v.add("spec.url", remedy, "is not the URL of an HTTP server") // it may have a password: it is not repeated
	case u.User != nil:
		v.add("spec.url", "take them out: the receiver knows its sender by the signature", "has a user or password")
	case len(w.Spec.URL) > maxWebhookURL || strings.Contains(w.Spec.URL, "#"):
		v.add("spec.url", "shorten it; take out a fragment", "has a fragment, or more than 2048 bytes")
	}
	enum(v, "spec.level", &w.Spec.Level, LevelInfo, LevelInfo, LevelWarning, LevelCritical)
	v.number("spec.secretVersion", w.Spec.SecretVersion, 0, 1<<30)
	return v.err()
}

// AtLeast reports whether l matters as much as the least one, or more.
func (l NotificationLevel) AtLeast(least NotificationLevel) bool {
	rank := map[NotificationLevel]int{LevelWarning: 1, LevelCritical: 2}
	return rank[l] >= rank[least]
}
