package engine

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// cdnOrigin is a web server that counts what it is asked for.
type cdnOrigin struct {
	mu    sync.Mutex
	asked map[string]int
	hold  chan struct{} // files are sent to half until it is closed
	live  chan []byte   // what the live stream has
	big   []byte
}

func (o *cdnOrigin) count(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked[path]
}

func (o *cdnOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.asked[r.RequestURI]++
	o.mu.Unlock()
	switch r.URL.Path {
	case "/big":
		w.Header().Set("ETag", `"big-1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(o.big)))
		_, _ = w.Write(o.big[:len(o.big)/2])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-o.hold:
		case <-r.Context().Done():
		}
		_, _ = w.Write(o.big[len(o.big)/2:])
	case "/page.html":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "hello")
	case "/short":
		w.Header().Set("Cache-Control", "max-age=1")
		_, _ = io.WriteString(w, "short")
	case "/secret":
		w.Header().Set("Cache-Control", "no-store")
		_, _ = io.WriteString(w, strings.Repeat("s", 100<<10))
	case "/broken":
		w.Header().Set("Content-Length", "100000")
		_, _ = w.Write(o.big[:50000])
	case "/live":
		w.Header().Set("Content-Type", "video/mp2t")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case b := <-o.live:
				_, _ = w.Write(b)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	default:
		http.NotFound(w, r)
	}
}

// newCDN is active-cdn in an engine before an origin.
func newCDN(t *testing.T, config onpath.Env) (*serving, *cdnOrigin) {
	t.Helper()
	code, err := os.ReadFile("../functions/active-cdn/active-cdn.wasm")
	if err != nil {
		t.Fatal(err)
	}
	o := &cdnOrigin{asked: map[string]int{}, hold: make(chan struct{}), live: make(chan []byte), big: randomBytes(3 << 20)}
	web := httptest.NewServer(o)
	t.Cleanup(web.Close)
	s := newServing(t, 16<<20)
	if config == nil {
		config = onpath.Env{}
	}
	config["origin"] = web.URL
	s.set(code, config, strings.TrimPrefix(web.URL, "http://"))
	return s, o
}

func (s *serving) ask(path string, header ...string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return (&http.Client{Timeout: time.Minute}).Do(req)
}

// body asks and gives status, header and body in one.
func (s *serving) body(path string, header ...string) (int, http.Header, []byte) {
	s.t.Helper()
	resp, err := s.ask(path, header...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Errorf("%s: %v", path, err)
	}
	return resp.StatusCode, resp.Header, b
}

// TestCrowd: of a file that a crowd asks for at once, the origin is asked once; the crowd has
// what there is while the rest comes, also parts; a client that reads nothing holds up nobody.
func TestCrowd(t *testing.T) {
	s, o := newCDN(t, nil)
	slow, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprintf(slow, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
	var all sync.WaitGroup
	half := make(chan bool, 30)
	for range 30 {
		all.Go(func() {
			resp, err := s.ask("/big")
			if err != nil {
				t.Error(err)
				half <- false
				return
			}
			defer resp.Body.Close()
			b := make([]byte, len(o.big)/2)
			_, err = io.ReadFull(resp.Body, b)
			half <- err == nil
			rest, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Equal(append(b, rest...), o.big) {
				t.Errorf("%d bytes of %d came: %v", len(b)+len(rest), len(o.big), err)
			}
		})
	}
	for range 30 { // though the origin has sent no more than half
		if !<-half {
			t.Error("the first half did not come")
		}
	}
	if status, _, b := s.body("/big", "Range", "bytes=1000-1999"); status != 206 || !bytes.Equal(b, o.big[1000:2000]) {
		t.Errorf("a part of what is there: %d, %d bytes", status, len(b))
	}
	close(o.hold)
	all.Wait()
	if n := o.count("/big"); n != 1 {
		t.Errorf("the origin was asked %d times", n)
	}
}

// TestParts: parts, conditions and HEAD are answered from what is stored, as RFC 9110 says.
func TestParts(t *testing.T) {
	s, o := newCDN(t, nil)
	close(o.hold)
	if status, h, b := s.body("/big"); status != 200 || !bytes.Equal(b, o.big) || h.Get("Accept-Ranges") != "bytes" {
		t.Fatalf("%d, %d bytes, %v", status, len(b), h)
	}
	n := len(o.big)
	for _, c := range []struct {
		ask    []string
		status int
		from   int
		to     int
	}{
		{[]string{"Range", "bytes=5-9"}, 206, 5, 10},
		{[]string{"Range", "bytes=-7"}, 206, n - 7, n},
		{[]string{"Range", fmt.Sprintf("bytes=%d-", n-3)}, 206, n - 3, n},
		{[]string{"Range", "bytes=0-99999999999"}, 206, 0, n},
		{[]string{"Range", fmt.Sprintf("bytes=%d-", n)}, 416, 0, 0},
		{[]string{"Range", "bytes=9-5"}, 200, 0, n},
		{[]string{"Range", "bytes=1-2,4-5"}, 200, 0, n},
		{[]string{"Range", "bytes=x"}, 200, 0, n},
		{[]string{"Range", "bytes=5-9", "If-Range", `"big-1"`}, 206, 5, 10},
		{[]string{"Range", "bytes=5-9", "If-Range", `"big-2"`}, 200, 0, n},
		{[]string{"If-None-Match", `"big-1"`}, 304, 0, 0},
		{[]string{"If-None-Match", `"big-2"`}, 200, 0, n},
	} {
		if status, h, b := s.body("/big", c.ask...); status != c.status || !bytes.Equal(b, o.big[c.from:c.to]) {
			t.Errorf("%v: %d, %d bytes, %v", c.ask, status, len(b), h)
		}
	}
	resp, err := http.Head(s.url + "/big")
	if err != nil || resp.ContentLength != int64(n) || resp.Header.Get("ETag") != `"big-1"` {
		t.Errorf("HEAD: %+v, %v", resp, err)
	}
	resp.Body.Close()
	if o.count("/big") != 1 {
		t.Errorf("the origin was asked %d times", o.count("/big"))
	}
}

// TestNotStored: what may not be stored is handed on and asked for each time, what is over is
// asked for again, a file that breaks off breaks off for the client, and is not stored.
func TestNotStored(t *testing.T) {
	s, o := newCDN(t, onpath.Env{"overlay": "rain at noon\n"})
	for range 2 {
		if status, _, b := s.body("/secret"); status != 200 || len(b) != 100<<10 {
			t.Errorf("%d, %d bytes", status, len(b))
		}
		if status, _, _ := s.body("/missing"); status != 404 {
			t.Errorf("%d", status)
		}
		if resp, err := s.ask("/broken"); err == nil {
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("half a file came as a whole one")
			}
			resp.Body.Close()
		}
	}
	began := time.Now()
	_, _, _ = s.body("/short")
	_, _, _ = s.body("/short")
	late := time.Since(began) > 900*time.Millisecond // a busy machine: its time may be over
	if n := o.count("/short"); n != 1 && !late {
		t.Errorf("within its time it was asked for %d times", n)
	}
	time.Sleep(1100 * time.Millisecond)
	_, _, _ = s.body("/short")
	for path, want := range map[string]int{"/secret": 2, "/missing": 2, "/broken": 2, "/short": 2} { // a client asks again when all broke off early
		if n := o.count(path); n < want || n > want && path != "/broken" && (path != "/short" || !late) {
			t.Errorf("%s was asked for %d times, want %d", path, n, want)
		}
	}
	_, _, plain := s.body("/page.html")
	_, _, laid := s.body("/page.html?overlay=1")
	if string(plain) != "hello" || string(laid) != "rain at noon\nhello" || o.count("/page.html") != 1 {
		t.Errorf("%q, with the overlay %q", plain, laid)
	}
	if resp, err := http.Post(s.url+"/page.html", "text/plain", nil); err != nil || resp.StatusCode != 405 {
		t.Errorf("POST: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
}

// TestLive: a stream without end is fetched once for all who watch; who does not keep up is cut
// off, and the others miss nothing; when nobody watches, it is not fetched.
func TestLive(t *testing.T) {
	s, o := newCDN(t, nil)
	first, err := s.ask("/live")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	o.live <- []byte("begin")
	b := make([]byte, 5)
	if _, err := io.ReadFull(first.Body, b); err != nil || string(b) != "begin" {
		t.Fatalf("%q, %v", b, err)
	}
	slow, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprintf(slow, "GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
	second, err := s.ask("/live")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Body.Close()
	s.eventually("two more watchers", func() bool { return s.counts()["watchers"] == 2 })
	piece := randomBytes(64 << 10)
	const pieces = 160 // more than sockets hold
	go func() {
		for range pieces {
			select {
			case o.live <- piece:
			case <-t.Context().Done():
			}
		}
	}()
	var all sync.WaitGroup
	for _, r := range []io.Reader{first.Body, second.Body} {
		all.Go(func() {
			got := make([]byte, len(piece))
			for i := range pieces {
				if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, piece) {
					t.Errorf("piece %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
	if c := s.counts(); c["slow"] != 1 || c["stored"] != 0 || o.count("/live") != 1 {
		t.Errorf("%v; asked for %d times", c, o.count("/live"))
	}
	first.Body.Close()
	second.Body.Close()
	s.eventually("the end of the fetch", func() bool {
		var open int
		_ = s.e.do(t.Context(), func() { open = len(s.e.list[0].host.streams.open) })
		return open == 0
	})
}

// TestOnePiece: a piece that a module asks for again, before it came, comes once. Else the next
// one comes over it, which active-cdn has not yet given to all who watch.
func TestOnePiece(t *testing.T) {
	s, _ := newCDN(t, nil)
	first, err := s.ask("/live")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	time.Sleep(50 * time.Millisecond) // the fetch waits for the origin
	var fetches int
	err = s.e.do(t.Context(), func() {
		for _, o := range s.e.list[0].host.streams.open {
			if f, is := o.(*fetch); is {
				if fetches++; f.want() {
					t.Error("the stream took a second question for the piece that it reads")
				}
			}
		}
	})
	if err != nil || fetches != 1 {
		t.Errorf("%d fetches, %v", fetches, err)
	}
}
