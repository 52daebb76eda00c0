package attack_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/cli/console"
)

// browser is a page of somebody's console.
type browser struct {
	*console.Console
	cookie *http.Cookie
	key    string
}

func openConsole(t *testing.T, who *somebody) *browser {
	t.Helper()
	server, err := url.Parse(who.base)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{Console: console.New(console.Options{Address: "127.0.0.1:4799", Pages: fstest.MapFS{}, Server: server, Transport: who.http.Transport})}
	enter, _ := url.Parse(b.Open())
	w := httptest.NewRecorder()
	b.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: enter, Host: "127.0.0.1:4799", Header: http.Header{}})
	_, b.key, _ = strings.Cut(w.Header().Get("Refresh"), "#")
	if b.cookie = w.Result().Cookies()[0]; b.key == "" {
		t.Fatal("the console gave no key")
	}
	return b
}

// moment is how long a page waits for answers, some of which do not end.
const moment = 500 * time.Millisecond

// ask is what a page is answered within a time.
func (b *browser) ask(ctx context.Context, within time.Duration, method, path string) (code int, text string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, path, nil)
	r.Host = "127.0.0.1:4799"
	r.AddCookie(b.cookie)
	r.Header.Set("X-Onpath-Console", b.key)
	w := httptest.NewRecorder()
	func() {
		defer func() { _ = recover() }() // the proxy gives up a stream that ends early by a panic
		b.ServeHTTP(w, r)
	}()
	said, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(said)
}

// TestConsoleOfTenant: by no route that changes something does a tenant's console reach what
// is another's, and by none that can be read, however it is asked, does it show what another
// tenant wrote or was told; the operator's does.
func TestConsoleOfTenant(t *testing.T) {
	s := newServer(t)
	ctx := t.Context()
	const mark = "hush-hush"
	for _, k := range []onpath.Key{{Kind: onpath.KindHosts, Tenant: "shop", Name: "site"}, {Kind: onpath.KindFunction, Tenant: "shop", Name: "fw"},
		{Kind: onpath.KindChain, Tenant: "shop", Name: "web"}} {
		o, err := s.operator.Get(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		o.Meta().Labels = map[string]string{"note": mark}
		if _, err := s.operator.Put(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	hook := object("Webhook", "shop", "pager", `{"url":"https://example.com/`+mark+`"}`)
	operator := &somebody{http: s.operator.HTTP(), base: s.operator.URL()}
	if code, text := operator.ask(ctx, http.MethodPut, "/v1/webhooks/shop/pager", hook); code >= 300 {
		t.Fatal(code, text)
	}
	err := s.told.Store("gw1", "s", []onpath.NumberedNotification{{Number: 1, Said: onpath.Notification{Time: time.Now(), Tenant: "shop",
		Instance: "web-fw-1", Level: onpath.LevelInfo, Title: mark}}})
	if err != nil {
		t.Fatal(err)
	}
	_, text := operator.askAll(ctx, "/openapi.json")
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	theirs := openConsole(t, s.joined(auth.TokenRequest{Role: auth.RoleUser, Name: "mallory", Tenant: "evil"}))
	ours := openConsole(t, operator)
	var read []string
	shown, refused := 0, 0
	for path, methods := range doc.Paths {
		for method := range methods {
			if method = strings.ToUpper(method); method == http.MethodGet || !strings.Contains(path, "{tenant}") {
				continue
			}
			for _, name := range []string{"web", "site", "fw", "pager"} {
				if code, text := theirs.ask(ctx, time.Minute, method, strings.NewReplacer("{tenant}", "shop", "{name}", name).Replace(path)); code < 400 || code >= 500 {
					t.Errorf("%s %s of %s is answered %d %s", method, path, name, code, text)
				}
				refused++
			}
		}
	}
	for path, methods := range doc.Paths {
		if methods["get"] == nil || !strings.HasPrefix(path, "/v1/") || path == "/v1/backup" {
			continue
		}
		for _, name := range []string{"web", "site", "pager"} {
			at := strings.NewReplacer("{tenant}", "shop", "{name}", name, "{id}", "x", "{node}", "gw1").Replace(path)
			for _, query := range []string{"", "?tenant=shop", "?from=1", "?tenant=shop&follow=true&limit=10", "?instance=shop/web-fw-1"} {
				if _, text := theirs.ask(ctx, moment, http.MethodGet, at+query); strings.Contains(text, mark) {
					t.Errorf("%s%s shows %s", at, query, text)
				}
			}
			read = append(read, at)
			if !strings.Contains(path, "{name}") {
				break
			}
		}
	}
	for within := moment; shown < 6 && within < time.Minute; within *= 4 { // a busy machine takes longer than a moment
		shown = 0
		for _, at := range read {
			if _, text := ours.ask(ctx, within, http.MethodGet, at); strings.Contains(text, mark) {
				shown++
			}
		}
	}
	if refused < 40 {
		t.Errorf("only %d requests to change something were tried", refused)
	}
	if shown < 6 {
		t.Errorf("the operator's console shows it by %d routes only", shown)
	}
}
