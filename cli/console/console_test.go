package console

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// behind is a console before a server that says what it was asked.
type behind struct {
	*Console
	asked []string
}

func newBehind(t *testing.T) *behind {
	b := &behind{}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		b.asked = append(b.asked, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Cookie")+string(body))
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/watch" {
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		_, _ = io.WriteString(w, `{"items":[]}`)
	}))
	t.Cleanup(api.Close)
	u, _ := url.Parse(api.URL)
	b.Console = New(Options{Address: "127.0.0.1:4799", Server: u, Transport: http.DefaultTransport,
		Catalogue: []byte(`[{"name":"cache"}]`),
		Pages:     fstest.MapFS{"index.html": {Data: []byte("<html>")}, "assets/a.js": {Data: []byte("1")}}})
	return b
}

// ask makes a request as a browser does; headers are name, value, ….
func (b *behind) ask(method, target string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, target, strings.NewReader("x"))
	r.Host = "127.0.0.1:4799"
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w.Result()
}

func (b *behind) enterOnce(t *testing.T) (cookie string) {
	t.Helper()
	u, _ := url.Parse(b.Open())
	resp := b.ask("GET", u.RequestURI(), "Sec-Fetch-Site", "none")
	if resp.StatusCode != http.StatusOK || len(resp.Cookies()) != 1 {
		t.Fatal(resp.Status, resp.Cookies())
	}
	c := resp.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
		t.Errorf("%+v", c)
	}
	return c.Name + "=" + c.Value
}

// TestStolenCode: a code opens the console once; without one, or with one that was used,
// nothing is read or changed.
func TestStolenCode(t *testing.T) {
	b := newBehind(t)
	used, _ := url.Parse(b.Open())
	cookie := b.enterOnce(t)
	for _, target := range []string{used.RequestURI(), "/enter", "/enter?code=", "/v1/chains", "/", "/assets/a.js"} {
		if resp := b.ask("GET", target); resp.StatusCode < 400 {
			t.Errorf("%s: %s", target, resp.Status)
		}
	}
	if resp := b.ask("GET", "/v1/chains", "Cookie", "onpath-console-4799=AAAAAAAAAAAAAAAAAAAAAAAAAA", keyHeader, b.key); resp.StatusCode != http.StatusUnauthorized {
		t.Error(resp.Status)
	}
	if len(b.asked) > 0 {
		t.Errorf("the server was asked %q", b.asked)
	}
	resp := b.ask("GET", "/v1/chains?tenant=a", "Cookie", cookie, "Sec-Fetch-Site", "same-origin", keyHeader, b.key)
	if resp.StatusCode != http.StatusOK || len(b.asked) != 1 || b.asked[0] != "GET /v1/chains?tenant=a x" || resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("%s %q %q", resp.Status, b.asked, resp.Header)
	}
}

// TestStolenCookie: another server on loopback, to which the browser sends the cookie, reads
// and changes nothing with it; neither pages nor the API's answers have the key.
func TestStolenCookie(t *testing.T) {
	b := newBehind(t)
	cookie := b.enterOnce(t)
	for _, header := range []string{"", b.session, "1", strings.TrimPrefix(cookie, "onpath-console-4799=")} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if resp := b.ask(method, "/v1/chains", "Cookie", cookie, keyHeader, header); resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %q: %s", method, header, resp.Status)
			}
		}
	}
	if len(b.asked) > 0 {
		t.Errorf("the server was asked %q", b.asked)
	}
	for _, target := range []string{"/", "/assets/a.js", "/enter"} {
		resp := b.ask("GET", target, "Cookie", cookie)
		if body, _ := io.ReadAll(resp.Body); strings.Contains(fmt.Sprint(resp.Header)+string(body), b.key) {
			t.Errorf("%s has the key", target)
		}
	}
}

// TestReboundName: by a name that somebody made to point at loopback nothing is answered,
// whatever else the request has.
func TestReboundName(t *testing.T) {
	b := newBehind(t)
	cookie := b.enterOnce(t)
	u, _ := url.Parse(b.Open())
	for _, host := range []string{"evil.example:4799", "127.0.0.1", "127.0.0.1:80", "", "127.0.0.1:4799.evil.example", "0.0.0.0:4799"} {
		for _, target := range []string{"/v1/chains", "/", u.RequestURI()} {
			if resp := b.ask("GET", target, "Host", host, "Cookie", cookie, keyHeader, b.key); resp.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("%q %s: %s", host, target, resp.Status)
			}
		}
	}
	if resp := b.ask("GET", "/v1/chains", "Host", "localhost:4799", "Cookie", cookie, keyHeader, b.key); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
}

// TestForgedRequest: what another site has a browser ask changes and reads nothing, even with
// the cookie, and whatever it knows.
func TestForgedRequest(t *testing.T) {
	b := newBehind(t)
	cookie := b.enterOnce(t)
	for _, forged := range [][]string{
		{"POST", "/v1/apply", "Origin", "http://evil.example"},
		{"POST", "/v1/apply", "Origin", "null"},
		{"POST", "/v1/apply", "Sec-Fetch-Site", "cross-site", keyHeader, b.key},
		{"POST", "/v1/apply", "Sec-Fetch-Site", "same-site", keyHeader, b.key},
		{"POST", "/v1/apply", "Origin", "http://127.0.0.1:4799"}, // without the header, as by a form
		{"DELETE", "/v1/chains/default/web"},
		{"GET", "/v1/chains", "Sec-Fetch-Site", "cross-site", keyHeader, b.key},
		{"GET", "/v1/chains", "Origin", "http://127.0.0.1:4800", keyHeader, b.key},
		{"GET", "/v1/chains"}, // as by a link
		{"GET", "/", "Sec-Fetch-Site", "cross-site"},
		{"GET", "/v1/instances/default/a/exec", "Upgrade", "onpath-exec/1", "Connection", "Upgrade", keyHeader, b.key},
	} {
		if resp := b.ask(forged[0], forged[1], append(forged[2:], "Cookie", cookie)...); resp.StatusCode < 400 {
			t.Errorf("%q: %s", forged, resp.Status)
		}
	}
	if len(b.asked) > 0 {
		t.Errorf("the server was asked %q", b.asked)
	}
	if resp := b.ask("POST", "/v1/apply", "Origin", "http://127.0.0.1:4799", "Sec-Fetch-Site", "same-origin",
		keyHeader, b.key, "Cookie", cookie); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
}

// TestPages: files and the application are given, with a policy that lets no foreign script run.
func TestPages(t *testing.T) {
	b := newBehind(t)
	if r := b.ask("GET", "/catalogue", "Cookie", b.enterOnce(t)); r.Header.Get("Content-Type") != "application/json" || r.ContentLength == 0 {
		t.Error("catalogue:", r.Status, r.Header)
	}
	cookie := b.enterOnce(t)
	for target, want := range map[string]int{"/": 200, "/chains/default/web": 200, "/assets/a.js": 200, "/assets/none.js": 404} {
		resp := b.ask("GET", target, "Cookie", cookie)
		if resp.StatusCode != want {
			t.Errorf("%s: %s", target, resp.Status)
		}
		if p := resp.Header.Get("Content-Security-Policy"); !strings.Contains(p, "script-src 'self';") || strings.Contains(p, "unsafe-eval") {
			t.Errorf("%s: policy %q", target, p)
		}
	}
}

// TestCompressed: lists go compressed to who takes them so, streams as they come.
func TestCompressed(t *testing.T) {
	b := newBehind(t)
	cookie := b.enterOnce(t)
	for target, want := range map[string]string{"/v1/chains": "gzip", "/v1/watch": "", "/assets/a.js": "gzip", "/": "", "/assets/none.js": ""} {
		resp := b.ask("GET", target, "Cookie", cookie, keyHeader, b.key, "Accept-Encoding", "gzip")
		if got := resp.Header.Get("Content-Encoding"); got != want {
			t.Errorf("%s comes as %q, must come as %q", target, got, want)
		}
		if resp := b.ask("GET", target, "Cookie", cookie, keyHeader, b.key); resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s is compressed for a browser that did not ask for it", target)
		}
	}
}

// TestFirstView: what a browser fetches before it shows anything is 600 kB at most.
func TestFirstView(t *testing.T) {
	b := newBehind(t)
	b.o.Pages = os.DirFS("../../web/dist")
	cookie := b.enterOnce(t)
	page, _ := io.ReadAll(b.ask("GET", "/", "Cookie", cookie).Body)
	sum := len(page)
	for _, m := range regexp.MustCompile(`(?:src|href)="(/assets/[^"]+)"`).FindAllStringSubmatch(string(page), -1) {
		resp := b.ask("GET", m[1], "Cookie", cookie, "Accept-Encoding", "gzip, deflate, br")
		sent, _ := io.ReadAll(resp.Body)
		sum += len(sent)
		z, err := gzip.NewReader(bytes.NewReader(sent))
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != "gzip" {
			t.Fatal(m[1], resp.Status, err)
		}
		got, err := io.ReadAll(z)
		plain, _ := io.ReadAll(b.ask("GET", m[1], "Cookie", cookie).Body)
		if err != nil || len(got) == 0 || !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, and %d to a browser that takes them plain: %v", m[1], len(got), len(plain), err)
		}
	}
	if t.Logf("%d bytes", sum); sum < 100_000 || sum > 600_000 {
		t.Errorf("the first view takes %d bytes", sum)
	}
}
