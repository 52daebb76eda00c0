package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestSign: the example of Standard Webhooks' own libraries.
func TestSign(t *testing.T) {
	secret, _ := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	got := sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, must be %s", got, want)
	}
}

// TestSignedForAll: while the server's secret is rotated, a receiver that has either webhook
// secret finds its signature.
func TestSignedForAll(t *testing.T) {
	secrets := secretsOf([][]byte{[]byte("new"), []byte("old")}, webhook("https://example.net"))
	all := signAll(secrets, "msg_1", "1", []byte("x"))
	for _, secret := range secrets {
		if !slices.Contains(strings.Fields(all), sign(secret, "msg_1", "1", []byte("x"))) {
			t.Errorf("%q lacks a signature", all)
		}
	}
}

// receiver is somebody's HTTP server.
type receiver struct {
	t       *testing.T
	mu      sync.Mutex
	secret  string
	answer  func(title string) int
	got     []string          // titles that were taken, in order
	ids     map[string]string // by title
	asked   map[string]int    // by title
	changed chan struct{}
}

func newReceiver(t *testing.T) (*receiver, string) {
	r := &receiver{t: t, ids: map[string]string{}, asked: map[string]int{}, changed: make(chan struct{}, 1000)}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, s.URL + "/hook?token=hush"
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.changed <- struct{}{} }()
	id, at := q.Header.Get("webhook-id"), q.Header.Get("webhook-timestamp")
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(id + "." + at + "." + string(body)))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); q.Header.Get("webhook-signature") != want || len(key) < 24 {
		r.t.Errorf("signature %q, must be %q", q.Header.Get("webhook-signature"), want)
	}
	var m struct {
		Type string
		Data onpath.Notification
	}
	if err := json.Unmarshal(body, &m); err != nil || m.Type != "notification" || q.Method != http.MethodPost {
		r.t.Errorf("%s %s: %v", q.Method, body, err)
	}
	title := m.Data.Title
	if before := r.ids[title]; before != "" && before != id {
		r.t.Errorf("%s has id %s, and had %s", title, id, before)
	}
	r.ids[title], r.asked[title] = id, r.asked[title]+1
	code := 204
	if r.answer != nil {
		code = r.answer(title)
	}
	if code/100 == 2 {
		r.got = append(r.got, title)
	}
	if code == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(code)
}

// wait returns once something is so; it is asked again after each request.
func (r *receiver) wait(what string, so func() bool) {
	r.t.Helper()
	limit := time.After(time.Minute)
	for {
		r.mu.Lock()
		done := so()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.changed:
		case <-limit:
			r.t.Fatalf("it is not so after a minute: %s (taken: %q)", what, r.got)
		}
	}
}

func (r *receiver) taken(want string) {
	r.t.Helper()
	r.wait(want, func() bool { return strings.Join(r.got, " ") == want })
}

// hooked is a keeper with one webhook at work.
type hooked struct {
	*Keeper
	hooks *Webhooks
	stop  context.CancelFunc
	over  chan error
}

func webhook(url string) *onpath.Webhook {
	return &onpath.Webhook{Metadata: onpath.Metadata{Name: "pager", Tenant: "a", UID: "u1"}, Spec: onpath.WebhookSpec{URL: url}}
}

// start opens a folder as a server does at its start, and returns when the webhook works.
func start(t *testing.T, dir string, w *onpath.Webhook, log io.Writer, allowed ...string) *hooked {
	t.Helper()
	h := &hooked{Keeper: open(t, dir), over: make(chan error, 1)}
	var may []netip.Prefix
	for _, a := range allowed {
		may = append(may, netip.MustParsePrefix(a))
	}
	h.hooks = NewWebhooks(WebhookOptions{Keeper: h.Keeper, Allowed: may, Secrets: func() [][]byte { return [][]byte{[]byte("the server's")} },
		Log: slog.New(slog.NewTextHandler(log, nil)), Now: func() time.Time { return time.Unix(100, 0) },
		List: func(context.Context) ([]*onpath.Webhook, error) { return []*onpath.Webhook{w}, nil },
		Underlay: func(context.Context) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("203.0.113.9")}, nil
		}})
	h.hooks.backOff = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	h.hooks.set(ctx, []*onpath.Webhook{w})
	go func() { h.over <- h.hooks.Run(ctx) }()
	t.Cleanup(h.end)
	return h
}

func (h *hooked) end() {
	h.stop()
	if h.over != nil {
		<-h.over
		h.over = nil
	}
}

func (h *hooked) say(t *testing.T, first uint64, titles ...string) {
	t.Helper()
	var list []onpath.NumberedNotification
	for i, title := range titles {
		list = append(list, said(first+uint64(i), "a", title), said(first+uint64(i), "b", "another's"))
	}
	if err := h.Store("n1", "s1", list); err != nil {
		t.Fatal(err)
	}
}

// sent returns once the server knows that so many were taken: a while after the receiver.
func (h *hooked) sent(t *testing.T, w *onpath.Webhook, want uint64) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); h.hooks.State(w).Sent != want; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%+v; %d must be sent", h.hooks.State(w), want)
		}
	}
}

// TestWebhook: what comes after the webhook was made is sent in order and signed, again
// with the same id while it is refused, and on from there by the next server; no log has
// the secret or the URL.
func TestWebhook(t *testing.T) {
	dir, log := t.TempDir(), &bytes.Buffer{}
	r, url := newReceiver(t)
	w := webhook(url)
	k := open(t, dir)
	if err := k.Store("n1", "s1", []onpath.NumberedNotification{said(1, "a", "before")}); err != nil {
		t.Fatal(err)
	}
	h := start(t, dir, w, log, "127.0.0.0/8")
	secret := h.hooks.State(w).Secret
	r.secret = secret
	r.answer = func(title string) int {
		if title == "two" && r.asked[title] < 4 || title == "four" {
			return 500
		}
		return 204
	}
	h.say(t, 2, "one", "two", "three", "four", "five")
	r.wait("four is tried thrice", func() bool { return r.asked["four"] >= 3 })
	r.taken("one two three")
	if s := h.hooks.State(w); s.Sent != 3 || s.Failures == 0 || !strings.Contains(s.Message, "500") {
		t.Errorf("%+v", s)
	}
	h.end()
	r.mu.Lock()
	r.answer = nil
	r.mu.Unlock()
	h = start(t, dir, w, log, "127.0.0.0/8")
	r.taken("one two three four five")
	h.say(t, 7, "six")
	r.taken("one two three four five six")
	h.sent(t, w, 6)
	if s := h.hooks.State(w); s.Secret != secret || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
	h.end() // nothing writes the log any more
	if text := log.String(); !strings.Contains(text, "500") || strings.Contains(text, "whsec_") || strings.Contains(text, "hush") ||
		strings.Contains(text, strings.TrimPrefix(secret, "whsec_")) {
		t.Errorf("the log has too little or too much: %s", text)
	}
	b, _ := json.Marshal(w)
	if bytes.Contains(b, []byte("whsec_")) {
		t.Errorf("%s", b)
	}
	other := *w
	other.Spec.SecretVersion++
	anew := *w
	anew.Metadata.UID = "u2"
	if a, b := h.hooks.State(&other).Secret, h.hooks.State(&anew).Secret; a == secret || b == secret || a == b {
		t.Errorf("the secrets are %s, %s, %s", secret, a, b)
	}
}

// TestWebhookSelects: levels below are passed over, and so is what is older than a day.
func TestWebhookSelects(t *testing.T) {
	r, url := newReceiver(t)
	w := webhook(url)
	w.Spec.Level = onpath.LevelWarning
	h := start(t, t.TempDir(), w, io.Discard, "127.0.0.0/8")
	r.secret = h.hooks.State(w).Secret
	list := []onpath.NumberedNotification{said(1, "a", "info"), said(2, "a", "old"), said(3, "a", "critical"), said(4, "a", "info"),
		said(5, "a", "warning")}
	list[1].Said.Level, list[1].Said.Time = onpath.LevelCritical, time.Unix(99, 0).Add(-giveUpAfter)
	list[2].Said.Level, list[4].Said.Level = onpath.LevelCritical, onpath.LevelWarning
	if err := h.Store("n1", "s1", list); err != nil {
		t.Fatal(err)
	}
	r.taken("critical warning")
	h.sent(t, w, 2)
	if s := h.hooks.State(w); s.Dropped != 1 {
		t.Errorf("%+v", s)
	}
}

// TestWebhookRefused: a target that nobody allowed is not connected to, by whatever name,
// and a redirect leads nowhere.
func TestWebhookRefused(t *testing.T) {
	r, url := newReceiver(t)
	for _, u := range []string{url, strings.Replace(url, "127.0.0.1", "localhost", 1)} {
		w := webhook(u)
		client := newClient(&targets{underlay: nobody, own: net.InterfaceAddrs})
		err := post(t.Context(), client, w, [][]byte{[]byte("x")}, said(1, "a", "one").Said, time.Now())
		if err == nil || onpath.CodeOf(err) != onpath.CodeForbidden && !strings.Contains(fmt.Sprint(err), "may not lead to") ||
			strings.Contains(fmt.Sprint(err), "hush") {
			t.Errorf("%s: %v", u, err)
		}
	}
	if len(r.asked) > 0 {
		t.Errorf("it was asked: %v", r.asked)
	}
	w := webhook(url)
	h := start(t, t.TempDir(), w, io.Discard, "127.0.0.0/8")
	r.secret = h.hooks.State(w).Secret
	r.answer = func(string) int { return http.StatusFound }
	h.say(t, 1, "one")
	r.wait("it is asked again", func() bool { return r.asked["one"] > 2 })
	if len(r.got) > 0 {
		t.Error("a redirect was followed")
	}
}

func nobody(context.Context) ([]netip.Addr, error) { return nil, nil }

// TestTarget: what may be dialled.
func TestTarget(t *testing.T) {
	x := &targets{allowed: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")},
		underlay: func(context.Context) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("203.0.113.9")}, nil
		},
		own: func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.IPv4(203, 0, 113, 8), Mask: net.CIDRMask(24, 32)}}, nil
		}}
	for text, may := range map[string]bool{
		"8.8.8.8": true, "2001:4860:4860::8888": true, "203.0.113.7": true, "10.1.2.3": true, "fd00:1::2": true, "::ffff:10.1.2.3": true,
		"127.0.0.1": false, "127.8.8.8": false, "::1": false, "0.0.0.0": false, "::": false, "10.2.0.1": false, "192.168.1.1": false,
		"172.31.0.1": false, "169.254.169.254": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "100.100.100.200": false,
		"168.63.129.16": false, "224.0.0.1": false, "255.255.255.255": false, "::ffff:127.0.0.1": false, "64:ff9b::7f00:1": false,
		"2002:7f00:1::": false, "203.0.113.8": false, "203.0.113.9": false, "::ffff:203.0.113.9": false, "::127.0.0.1": false,
	} {
		if err := x.check(t.Context(), netip.MustParseAddr(text)); (err == nil) != may {
			t.Errorf("%s: %v", text, err)
		}
	}
}
