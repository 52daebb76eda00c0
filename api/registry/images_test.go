package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

// imageWorld is a server's registry, and whoever uses it.
type imageWorld struct {
	*testing.T
	dir      string
	later    atomic.Int64      // what its clock is ahead
	stall    atomic.Int64      // its patience with those who stall
	used     map[string]string // image by function
	registry *Registry
	im       *images
	web      *httptest.Server
}

// Who uses it.
const (
	asOperator = "operator"
	asNode     = "node"
	asAcme     = "user acme"
	asRival    = "user rival"
)

func newImages(t *testing.T) *imageWorld {
	t.Helper()
	w := &imageWorld{T: t, dir: t.TempDir(), used: map[string]string{}}
	w.stall.Store(int64(time.Minute))
	w.open()
	w.web = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		role, tenant, _ := strings.Cut(r.Header.Get("As"), " ")
		who := auth.Identity{Role: auth.Role(role), Tenant: tenant, Name: "x"}
		rw, r, done := router.Rolling(rw, r, time.Duration(w.stall.Load()))
		defer done()
		w.registry.serveImages(rw, r.WithContext(rights.WithIdentity(r.Context(), who)))
	}))
	t.Cleanup(w.web.Close)
	return w
}

// open begins with what is on disk, as a server does that starts anew.
func (w *imageWorld) open() {
	w.Helper()
	var err error
	w.registry, err = New(Deps{Dir: w.dir, Quota: 1 << 20, Clock: w.now, Log: slog.New(slog.DiscardHandler),
		Used: func(context.Context) ([]string, error) { return slices.Collect(maps.Values(w.used)), nil }})
	if err != nil {
		w.Fatal(err)
	}
	w.im = w.registry.images
	w.registry.Register(router.New(router.Options{Log: slog.New(slog.DiscardHandler)}, nil))
}

func (w *imageWorld) now() time.Time { return time.Now().Add(time.Duration(w.later.Load())) }

func (w *imageWorld) pass(d time.Duration) { w.later.Add(int64(d)) }

// roundTripAs sends requests as a user.
type roundTripAs string

func (as roundTripAs) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("As", string(as))
	return http.DefaultTransport.RoundTrip(r)
}

// try sends a request, and reads the answer if one comes.
func (w *imageWorld) try(as, method, path string, body io.Reader, headers ...string) (*http.Response, string, error) {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, w.web.URL+path, body)
	if err != nil {
		w.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := roundTripAs(as).RoundTrip(r)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer, string(b), err
}

// ask sends a request, and wants a status and what an error's code must be.
func (w *imageWorld) ask(status int, code, as, method, path string, body string, headers ...string) *http.Response {
	w.Helper()
	answer, text, err := w.try(as, method, path, strings.NewReader(body), headers...)
	if err != nil {
		w.Fatalf("%s %s: %v", method, path, err)
	}
	if answer.StatusCode != status {
		w.Fatalf("%s %s as %s is answered %s %s, want %d", method, path, as, answer.Status, text, status)
	}
	var told struct{ Errors []struct{ Code string } }
	if code != "" && (json.Unmarshal([]byte(text), &told) != nil || len(told.Errors) != 1 || told.Errors[0].Code != code) {
		w.Fatalf("%s %s as %s is answered %s, want the code %s", method, path, as, text, code)
	}
	answer.Body = io.NopCloser(strings.NewReader(text))
	return answer
}

func digestOf(data string) string {
	h, _, _ := v1.SHA256(strings.NewReader(data))
	return h.String()
}

// randomText is data that nobody else has.
func randomText(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(rand.N(26))
	}
	return string(b)
}

// push sends a blob in one request.
func (w *imageWorld) push(as, repo, data string) (digest string) {
	w.Helper()
	digest = digestOf(data)
	w.ask(201, "", as, "POST", "/v2/"+repo+"/blobs/uploads/?digest="+digest, data)
	return digest
}

// begin begins an upload, and tells its path.
func (w *imageWorld) begin(as, repo string) string {
	w.Helper()
	a := w.ask(202, "", as, "POST", "/v2/"+repo+"/blobs/uploads/", "")
	if a.Header.Get("Docker-Upload-UUID") == "" || a.Header.Get("Range") != "0-0" {
		w.Fatalf("a new upload: %v", a.Header)
	}
	return a.Header.Get("Location")
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// manifestOf is a manifest with layers, the first of which is also its
// configuration.
func manifestOf(digests ...string) string {
	var layers []string
	for _, d := range digests {
		layers = append(layers, fmt.Sprintf(`{"mediaType":"application/octet-stream","size":1,"digest":%q}`, d))
	}
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]}`, manifestType, layers[0], strings.Join(layers, ","))
}

// image pushes an image of one random blob.
func (w *imageWorld) image(as, repo, tag string) (manifest, blob string) {
	w.Helper()
	blob = w.push(as, repo, randomText(1000))
	m := manifestOf(blob)
	if tag == "" {
		tag = digestOf(m)
	}
	w.ask(201, "", as, "PUT", "/v2/"+repo+"/manifests/"+tag, m, "Content-Type", manifestType)
	return digestOf(m), blob
}

// files are the names in a folder of the registry.
func (w *imageWorld) files(dir string) (names []string) {
	w.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

// TestUploadGoesOn: an upload comes in pieces, goes on where it was cut off, and
// can be given up.
func TestUploadGoesOn(t *testing.T) {
	w := newImages(t)
	data := randomText(900)
	at := w.begin(asAcme, "acme/x")
	w.ask(202, "", asAcme, "PATCH", at, data[:300], "Content-Range", "0-299")
	for _, wrong := range []string{"0-299", "301-599", "300", "300-200", "bytes"} {
		if a := w.ask(416, "BLOB_UPLOAD_INVALID", asAcme, "PATCH", at, data[300:600], "Content-Range",
			wrong); a.Header.Get("Range") != "0-299" {
			t.Errorf("after 300 bytes the range is %q", a.Header.Get("Range"))
		}
	}
	// A body that breaks off leaves what has come.
	c, err := net.Dial("tcp", w.web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(c,
		"PATCH %s HTTP/1.1\r\nHost: x\r\nAs: %s\r\nContent-Range: 300-599\r\nContent-Length: 300\r\n\r\n%s", at, asAcme, data[300:500])
	if err = errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		a, text, err := w.try(asAcme, "GET", at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.StatusCode == 204 && a.Header.Get("Range") == "0-499" && a.Header.Get("Location") == at {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after 500 bytes: %s %s %v", a.Status, text, a.Header)
		}
	}
	digest := digestOf(data)
	w.ask(202, "", asAcme, "PATCH", at, data[500:700]) // streamed: without a range
	done := w.ask(201, "", asAcme, "PUT", at+"?digest="+digest, data[700:], "Content-Range", "700-899")
	if got, _ := io.ReadAll(w.ask(200, "", asAcme, "GET", done.Header.Get("Location"), "").Body); string(got) != data {
		t.Errorf("got %d bytes that are not those that were sent", len(got))
	}
	w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "GET", at, "")

	at = w.begin(asAcme, "acme/x")
	w.ask(202, "", asAcme, "PATCH", at, "something")
	w.ask(204, "", asAcme, "DELETE", at, "")
	w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "PATCH", at, "more")
	// What is to be mounted from another repository is pushed.
	a := w.ask(202, "", asAcme, "POST", "/v2/acme/y/blobs/uploads/?mount="+digest+"&from=acme/x", "")
	w.ask(204, "", asAcme, "DELETE", a.Header.Get("Location"), "")
	if left := w.files(w.im.uploadDir); len(left) > 0 {
		t.Errorf("there are uploads left: %v", left)
	}
}

// TestStalledUpload: who stalls holds up nobody but himself, and not for ever.
func TestStalledUpload(t *testing.T) {
	w := newImages(t)
	at := w.begin(asRival, "rival/x")
	patch := func() (out *io.PipeWriter, ended chan string) {
		in, out := io.Pipe()
		ended = make(chan string, 1)
		go func() {
			a, text, err := w.try(asRival, "PATCH", at, in)
			if err == nil {
				text = a.Status + " " + text
			}
			ended <- fmt.Sprint(text, err)
		}()
		if _, err := out.Write([]byte("some bytes")); err != nil {
			t.Fatal(err)
		}
		return out, ended
	}
	out, ended := patch()
	through := make(chan struct{})
	go func() {
		defer close(through)
		w.image(asAcme, "acme/x", "latest")
		if err := w.registry.sweep(t.Context()); err != nil {
			t.Error(err)
		}
		w.ask(200, "", asNode, "GET", "/v2/acme/x/manifests/latest", "")
		w.ask(409, "BLOB_UPLOAD_INVALID", asRival, "PATCH", at, "more")
	}()
	select {
	case <-through:
	case <-time.After(time.Minute):
		t.Error("others wait for a stalled upload")
	}
	out.Close()
	if text := <-ended; !strings.HasPrefix(text, "202") {
		t.Errorf("when it goes on, the upload ends with %s", text)
	}

	w.stall.Store(int64(time.Second))
	out, ended = patch()
	defer out.Close()
	select {
	case text := <-ended:
		if !strings.HasPrefix(text, "408") {
			t.Errorf("the stalled upload ended with %s", text)
		}
	case <-time.After(time.Minute):
		t.Error("the stalled upload does not end")
	}
	if a := w.ask(204, "", asRival, "GET", at, ""); a.Header.Get("Range") != "0-19" {
		t.Errorf("of twenty bytes are kept %s", a.Header.Get("Range"))
	}
}

// TestWrongDigest: what is not what it is said to be leaves nothing.
func TestWrongDigest(t *testing.T) {
	w := newImages(t)
	other := digestOf("other")
	at := w.begin(asAcme, "acme/x")
	w.ask(202, "", asAcme, "PATCH", at, "something")
	w.ask(400, "DIGEST_INVALID", asAcme, "PUT", at+"?digest="+other, "")
	w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "PUT", at+"?digest="+digestOf("something"), "")
	w.ask(400, "DIGEST_INVALID", asAcme, "POST", "/v2/acme/x/blobs/uploads/?digest="+other, "something")
	w.ask(400, "DIGEST_INVALID", asAcme, "POST", "/v2/acme/x/blobs/uploads/?digest=sha512:"+strings.Repeat("0", 128), "something")
	w.ask(400, "DIGEST_INVALID", asAcme, "PUT", w.begin(asAcme, "acme/x"), "something")
	w.ask(400, "DIGEST_INVALID", asAcme, "PUT", "/v2/acme/x/manifests/"+other, manifestOf(w.push(asAcme, "acme/x", "a")),
		"Content-Type", manifestType)
	w.ask(404, "BLOB_UNKNOWN", asOperator, "GET", "/v2/acme/x/blobs/"+other, "")
	if got := w.files(w.im.blobDir); !slices.Equal(got, []string{strings.TrimPrefix(digestOf("a"), "sha256:")}) {
		t.Errorf("the blobs are %v", got)
	}
	if got := w.files(w.im.manifestDir); len(got) > 0 {
		t.Errorf("the manifests are %v", got)
	}
	if got := w.files(w.im.uploadDir); len(got) != 1 { // that without a digest was not looked at
		t.Errorf("the uploads are %v", got)
	}
}

// TestUploadsAreCounted: their ids are ours, a tenant has a number of them, and
// forgotten ones go.
func TestUploadsAreCounted(t *testing.T) {
	w := newImages(t)
	for _, path := range []string{"/v2/acme/x/blobs/uploads/MINE", "/v2/acme/x/blobs/uploads/" + strings.Repeat("A", 26)} {
		w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "PATCH", path, "data")
		w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "PUT", path+"?digest="+digestOf("data"), "data")
		w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "GET", path, "")
	}
	at := w.begin(asAcme, "acme/x")
	id := filepath.Base(at)
	w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "PATCH", "/v2/acme/y/blobs/uploads/"+id, "data")
	w.ask(404, "BLOB_UPLOAD_UNKNOWN", asRival, "PATCH", "/v2/rival/x/blobs/uploads/"+id, "data")
	for open := 1; open < maxUploads; open++ {
		w.begin(asAcme, "acme/y")
	}
	w.ask(429, "TOOMANYREQUESTS", asAcme, "POST", "/v2/acme/x/blobs/uploads/", "")
	w.ask(429, "TOOMANYREQUESTS", asAcme, "POST", "/v2/acme/x/blobs/uploads/?digest="+digestOf("data"), "data")
	w.begin(asRival, "rival/x")
	w.ask(204, "", asAcme, "DELETE", at, "")
	w.begin(asAcme, "acme/x")

	w.pass(uploadKeep - time.Minute)
	recent := w.begin(asRival, "rival/y")
	w.pass(2 * time.Minute)
	if err := w.registry.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.files(w.im.uploadDir); !slices.Equal(left, []string{filepath.Base(recent)}) {
		t.Errorf("the uploads after an hour are %v", left)
	}
	for range maxUploads {
		w.begin(asAcme, "acme/x")
	}
	w.pass(uploadKeep + time.Minute)
	w.begin(asAcme, "acme/x") // there is room again also without a sweep
	w.open()
	if left := w.files(w.im.uploadDir); len(left) > 0 {
		t.Errorf("the uploads after a new start are %v", left)
	}
}
