// Package console serves the web pages on loopback, and passes what they ask of the API on
// with the rights of whoever started it. It decides nothing.
//
// Other web sites, and names that are made to point at loopback, reach nothing: whoever has
// not brought the one-time code gets nothing; the cookie that the code becomes is not sent
// along by other sites; requests by another name than the address's are refused, and so are
// those that another site had a browser make; and pages run no script but their own.
//
// Browsers send cookies to all ports of a host, so another server on loopback may see the
// cookie. What is asked of the API has a key as well, which the browser keeps for the
// pages' origin, port included, and which pages send in a header.
package console

import (
	"crypto/rand"
	"crypto/subtle"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
)

// Options of a console.
type Options struct {
	// Address at which it listens, host:port; loopback.
	Address string
	Pages   fs.FS
	// Server is the API's base URL, Transport the way there, with the caller's rights.
	Server    *url.URL
	Transport http.RoundTripper
	// Catalogue is what the program carries, as JSON.
	Catalogue []byte
	// Shell runs shells for terminals.
	Shell Shell
	// Entered is called with the next address to open when a code was used.
	Entered func(address string)
}

// keyHeader has the key; no form and no link can set it.
const keyHeader = "X-Onpath-Console"

// policy keeps out everything that is not the console's own.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; " +
	"font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Console is the handler.
type Console struct {
	o       Options
	hosts   map[string]bool
	cookie  string // its name: consoles on one host share the browser's cookies
	session string
	key     string
	proxy   http.Handler
	mu      sync.Mutex
	code    string
}

// New makes a console with a code that nobody has used.
func New(o Options) *Console {
	_, port, _ := net.SplitHostPort(o.Address)
	c := &Console{o: o, cookie: "onpath-console-" + port, session: rand.Text(), key: rand.Text(), code: rand.Text(),
		hosts: map[string]bool{o.Address: true, "localhost:" + port: true}}
	c.proxy = &httputil.ReverseProxy{
		Transport: o.Transport, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0), // pages that are left end their streams; others are told
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(o.Server)
			for _, name := range []string{"Cookie", "Origin", "Referer", "Authorization", keyHeader} {
				r.Out.Header.Del(name)
			}
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Set-Cookie")
			return nil
		},
	}
	return c
}

// Open is the address that opens the console once.
func (c *Console) Open() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return "http://" + c.o.Address + "/enter?code=" + c.code
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	w, end := compress(w, r)
	defer end()
	switch {
	case !c.hosts[r.Host]:
		http.Error(w, "the console answers at http://"+c.o.Address+" alone", http.StatusMisdirectedRequest)
	case r.URL.Path == "/enter":
		c.enter(w, r)
	case !c.known(r):
		http.Error(w, "open the address that onpath console has printed last", http.StatusUnauthorized)
	case foreign(r):
		http.Error(w, "another site made this request", http.StatusForbidden)
	case strings.HasPrefix(r.URL.Path, "/v1/"):
		c.pass(w, r)
	case r.URL.Path == "/catalogue":
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(c.o.Catalogue)
	case strings.HasPrefix(r.URL.Path, "/terminal/"):
		c.terminal(w, r)
	default:
		c.page(w, r)
	}
}

// enter takes the code, once, and gives the cookie and the key for it.
func (c *Console) enter(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	good := r.Method == http.MethodGet && same(r.URL.Query().Get("code"), c.code)
	if good {
		c.code = rand.Text()
	}
	c.mu.Unlock()
	if !good {
		http.Error(w, "this address was used, or never held: open the one that onpath console has printed last", http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: c.cookie, Value: c.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	// A redirection would come from another site still, and the cookie not be sent.
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Refresh", "0; url=/#"+c.key) // what stands behind # is sent to nobody
	if c.o.Entered != nil {
		c.o.Entered(c.Open())
	}
}

func (c *Console) known(r *http.Request) bool {
	k, err := r.Cookie(c.cookie)
	return err == nil && same(k.Value, c.session)
}

func same(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// foreign tells requests that another site's page made. A browser's own, as from the
// address line, say "none".
func foreign(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	return site != "" && site != "same-origin" && site != "none" || origin != "" && origin != "http://"+r.Host
}

// pass hands a request on to the server, if a page of the console made it.
func (c *Console) pass(w http.ResponseWriter, r *http.Request) {
	if !same(r.Header.Get(keyHeader), c.key) {
		c.noKey(w)
		return
	}
	if r.Header.Get("Upgrade") != "" {
		http.Error(w, "the console upgrades nothing", http.StatusNotImplemented)
		return
	}
	c.proxy.ServeHTTP(w, r)
}

func (c *Console) noKey(w http.ResponseWriter) {
	http.Error(w, "only the console's pages may ask this: open the address that onpath console has printed last", http.StatusForbidden)
}

// page gives a file, or the application, which knows its own addresses.
func (c *Console) page(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "pages are only read", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
	if s, err := fs.Stat(c.o.Pages, name); err != nil || s.IsDir() {
		if name = "index.html"; strings.HasPrefix(r.URL.Path, "/assets/") {
			http.NotFound(w, r)
			return
		}
	}
	if name == "terminal.html" { // what draws a terminal brings style of its own
		w.Header().Set("Content-Security-Policy", strings.Replace(policy, "style-src 'self'", "style-src 'self' 'unsafe-inline'", 1))
	}
	if strings.HasPrefix(name, "assets/") { // named by their contents
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, c.o.Pages, name)
}
