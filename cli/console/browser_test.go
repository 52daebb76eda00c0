package console

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// hostile is markup that would show itself: it makes an element with this id, and, where
// script runs, another title.
const hostile = `<img src=x id=injected onerror=\"document.title='owned'\"><script>document.title='owned'</script>`

// hostileAPI answers as a server whose every text somebody hostile wrote.
func hostileAPI(w http.ResponseWriter, r *http.Request) {
	meta := `"metadata":{"name":"web` + hostile + `","tenant":"default","labels":{"a":"` + hostile + `"}}`
	cond := `"conditions":[{"type":"Ready","status":"false","reason":"` + hostile + `","message":"` + hostile + `"}]`
	switch p := r.URL.Path; {
	case p == "/v1/notifications":
		_, _ = fmt.Fprintf(w, `{"id":"1","time":"2026-01-01T00:00:00Z","tenant":"default","instance":"i","node":"n","level":"info","title":"said %s","fields":{"%s":"%s"}}`+"\n", hostile, hostile, hostile)
		hold(r)
	case p == "/v1/watch" || p == "/v1/traffic":
		hold(r)
	case strings.HasSuffix(p, "/logs"):
		_, _ = io.WriteString(w, "said "+strings.ReplaceAll(hostile, `\"`, `"`)+"\n")
		hold(r)
	case p == "/v1/confirm":
		_, _ = io.WriteString(w, `[]`)
	case p == "/v1/trace":
		_, _ = fmt.Fprintf(w, `{"live":false,"forward":[{"kind":"drop","node":"said %s","element":0,"live":false,"message":"%s"}],"warnings":[{"text":"%s"}]}`, hostile, hostile, hostile)
	case p == "/v1/verify":
		_, _ = io.WriteString(w, `{}`)
	case p == "/v1/apply":
		_, _ = fmt.Fprintf(w, `{"changes":[{"kind":"Chain","name":"said %s","action":"create","diff":[{"field":"%s","new":"%s"}]}]}`, hostile, hostile, hostile)
	default:
		item := `{"kind":"Chain",` + meta + `,"spec":{"about":"said ` + hostile + `","cloudlet":"` + hostile + `","deployment":"web-fw","node":"said ` + hostile + `","from":"any","to":{"hosts":"` + hostile + `"},"through":[{"function":"said ` + hostile + `"}]},"status":{"state":"ready","message":"said ` + hostile + `",` + cond + `}}`
		if strings.HasPrefix(p, "/v1/leases") {
			item = strings.Replace(item, `"to":{`, `"to":["`+hostile+`"],"ends":{`, 1)
		}
		named := strings.Replace(item, meta, `"metadata":{"name":"i","tenant":"default"}`, 1) // has a page
		_, _ = io.WriteString(w, `{"items":[`+item+`,`+named+`],"revision":1}`)
	}
}

// hold keeps a stream open for a moment.
func hold(r *http.Request) {
	select {
	case <-time.After(time.Second):
	case <-r.Context().Done():
	}
}

// chromium is the browser's program, or the test is skipped.
func chromium(t *testing.T) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	t.Skip("no Chromium is installed")
	return ""
}

// TestMarkupInBrowser: names, conditions, notifications, logs and hops made of HTML and script
// are shown as text by a real browser, and run nothing.
func TestMarkupInBrowser(t *testing.T) {
	browser := chromium(t)
	api := httptest.NewServer(http.HandlerFunc(hostileAPI))
	defer api.Close()
	server, _ := url.Parse(api.URL)
	pages := []string{"/", "/instance/default/i"} // names, conditions, notifications, logs
	if os.Getenv("ONPATH_SOAK") != "" {
		pages = append(pages, "/notifications", "/why?src=10.0.0.1&dst=10.0.0.2&protocol=tcp&port=80", "/host/i",
			"/chain/default/i", "/build/default/i", "/build", "/list/machines")
		for _, kinds := range []string{"chains", "instances", "nodes", "functions", "services", "reservations", "accelerators", "leases",
			"tenants", "prefixclaims", "secrets", "webhooks", "events"} {
			pages = append(pages, "/list/"+kinds)
		}
	}
	for _, page := range pages {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c := New(Options{Address: l.Addr().String(), Pages: os.DirFS("../../web/dist"), Server: server, Transport: http.DefaultTransport})
		s := &http.Server{Handler: withSession(c)}
		go func() { _ = s.Serve(l) }()
		dom := domOf(t, browser, "http://"+l.Addr().String()+page)
		_ = s.Close()
		switch {
		case strings.Contains(dom, "<title>owned"), strings.Contains(dom, `id="injected"`):
			t.Errorf("%s: markup became part of the page", page)
		case page == "/" && !strings.Contains(dom, "What is wrong"):
			t.Errorf("the map does not say what is wrong: %.3000s", dom)
		case !strings.Contains(dom, "&lt;img src=x id=injected"):
			t.Errorf("%s does not show what was said: %.3000s", page, dom)
		}
	}
}

// withSession gives each request cookie and key: the browser here lives for one page.
func withSession(c *Console) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.AddCookie(&http.Cookie{Name: c.cookie, Value: c.session})
		r.Header.Set(keyHeader, c.key)
		c.ServeHTTP(w, r)
	})
}

func domOf(t *testing.T, browser, address string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=1200", "--dump-dom", address)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	return string(out)
}
