package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

const (
	attemptLimit  = 15 * time.Second // for one attempt, with its answer
	firstBackOff  = time.Second
	longestWait   = 5 * time.Minute
	giveUpAfter   = 24 * time.Hour
	longestReason = 300 // bytes of what is told of a failure
)

// secretsOf is what a Webhook signs with. They are made from the server's own secrets, so that
// no object, history or log has them.
func secretsOf(server [][]byte, w *onpath.Webhook) (out [][]byte) {
	for _, secret := range server {
		h := hmac.New(sha256.New, secret)
		fmt.Fprintf(h, "webhook\x00%s\x00%d", w.Metadata.UID, w.Spec.SecretVersion)
		out = append(out, h.Sum(nil))
	}
	return out
}

// secretText is a secret as receivers get it (Standard Webhooks, "Secret serialization").
func secretText(secret []byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(secret)
}

// message is one notification as it is posted (Standard Webhooks, "Payload structure").
type message struct {
	Type      string              `json:"type"`
	Timestamp time.Time           `json:"timestamp"`
	Data      onpath.Notification `json:"data"`
}

// messageID is the same for each attempt. A part of the notification's own id is a node's
// word: it does not get into a header.
func messageID(n onpath.Notification) string {
	sum := sha256.Sum256([]byte(n.ID))
	return "msg_" + hex.EncodeToString(sum[:16])
}

// signAll is the value of webhook-signature: one for each secret, the newest first.
func signAll(secrets [][]byte, id, timestamp string, body []byte) string {
	var all []string
	for _, secret := range secrets {
		all = append(all, sign(secret, id, timestamp, body))
	}
	return strings.Join(all, " ")
}

func sign(secret []byte, id, timestamp string, body []byte) string {
	h := hmac.New(sha256.New, secret)
	fmt.Fprintf(h, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// newClient is one that goes nowhere else: no redirect, no proxy.
func newClient(t *targets) *http.Client {
	return &http.Client{
		Timeout: attemptLimit,
		Transport: &http.Transport{DialContext: t.dialler().DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post sends one notification once. Its errors say nothing of the URL, which may have a
// password.
func post(ctx context.Context, c *http.Client, w *onpath.Webhook, secrets [][]byte, n onpath.Notification, now time.Time) error {
	body, err := json.Marshal(message{Type: "notification", Timestamp: n.Time, Data: n})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.Spec.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL cannot be asked")
	}
	id, timestamp := messageID(n), strconv.FormatInt(now.Unix(), 10)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "onpath")
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", timestamp)
	r.Header.Set("webhook-signature", signAll(secrets, id, timestamp, body))
	answer, err := c.Do(r)
	if err != nil {
		var at *url.Error
		if errors.As(err, &at) {
			err = at.Err
		}
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10) // the connection serves again
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("it answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	return nil
}
