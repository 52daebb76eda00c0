package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestTenantsImagesAreApart: whoever knows the digest of another tenant's blob
// gets nothing by it.
func TestTenantsImagesAreApart(t *testing.T) {
	w := newImages(t)
	manifest, blob := w.image(asAcme, "acme/x", "latest")
	see := func(status int, as, path string) {
		t.Helper()
		for _, method := range []string{"GET", "HEAD"} {
			w.ask(status, "", as, method, path, "")
		}
	}
	for range 2 { // also after a new start
		see(200, asAcme, "/v2/acme/x/blobs/"+blob)
		see(200, asAcme, "/v2/acme/y/blobs/"+blob)
		see(200, asNode, "/v2/acme/x/blobs/"+blob)
		see(200, asNode, "/v2/any/x/blobs/"+blob)
		see(200, asOperator, "/v2/rival/x/blobs/"+blob)
		see(404, asRival, "/v2/rival/x/blobs/"+blob)
		see(403, asRival, "/v2/acme/x/blobs/"+blob)
		see(403, asRival, "/v2/acme/x/manifests/latest")
		see(404, asRival, "/v2/rival/x/manifests/"+manifest)
		w.open()
	}
	names := manifestOf(blob)
	put := func(status int, code, as, repo, manifest, mediaType string) {
		t.Helper()
		w.ask(status, code, as, "PUT", "/v2/"+repo+"/manifests/"+digestOf(manifest), manifest, "Content-Type", mediaType)
	}
	put(404, "MANIFEST_BLOB_UNKNOWN", asRival, "rival/x", names, manifestType)
	put(404, "MANIFEST_BLOB_UNKNOWN", asOperator, "rival/x", manifestOf(digestOf("nowhere")), manifestType)
	index := fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":"","size":1,"digest":%q}]}`, blob)
	for _, mediaType := range []string{manifestType, "application/vnd.oci.image.index.v1+json", "text/plain"} {
		put(404, "MANIFEST_BLOB_UNKNOWN", asRival, "rival/x", index, mediaType)
		put(400, "MANIFEST_INVALID", asRival, "rival/x", "no JSON", mediaType)
		put(400, "MANIFEST_INVALID", asRival, "rival/x", `{"layers":[{"digest":"sha256:../../secret"}]}`, mediaType)
	}
	see(404, asRival, "/v2/rival/x/blobs/"+blob)

	// Who has the blob himself may push it; what an operator pushes is the tenant's.
	data, _ := io.ReadAll(w.ask(200, "", asNode, "GET", "/v2/acme/x/blobs/"+blob, "").Body)
	w.push(asRival, "rival/x", string(data))
	put(201, "", asRival, "rival/x", names, manifestType)
	see(200, asRival, "/v2/rival/x/blobs/"+blob)
	put(201, "", asOperator, "third/x", names, manifestType)
	see(200, "user third", "/v2/third/x/blobs/"+blob)
}

// TestImagePaths: nothing but what is needed is there, and what shows all
// tenants' is an operator's.
func TestImagePaths(t *testing.T) {
	w := newImages(t)
	manifest, blob := w.image(asAcme, "acme/x", "latest")
	for _, as := range []string{asAcme, asRival, asNode, asOperator} {
		w.ask(200, "", as, "GET", "/v2/", "")
		for _, path := range []string{
			"acme/_catalog", "acme/x/_catalog", "acme/x", "acme/x/manifests", "acme/x/manifests/", "acme/x/manifests/-a", "acme/x/manifests/a/b",
			"acme/x/tags", "acme/x/tags/", "acme/x/tags/list/", "acme/x/tagslist", "acme/X/tags/list", "acme/-x/tags/list", "acme/x-/tags/list", "acme/x.-y/tags/list",
			"manifests/latest", "tags/list", "blobs/" + blob, "acme/x/blobs/sha256:abc", "acme/x/blobs/" + strings.TrimPrefix(blob, "sha256:"),
			"acme/x/blobs/uploads/a/b", "acme/%2e%2e/blobs/" + blob, "acme/x/blobs/..%2f..%2fmanifests",
		} {
			w.ask(404, "NAME_UNKNOWN", as, "GET", "/v2/"+path, "")
		}
	}
	for _, as := range []string{asAcme, asRival, asNode, "", "stranger"} {
		w.ask(403, "", as, "GET", "/v2/_catalog", "")
		w.ask(403, "", as, "GET", "/v2/acme/x/referrers/"+manifest, "")
	}
	if b, _ := io.ReadAll(w.ask(200, "", asOperator, "GET", "/v2/_catalog", "").Body); string(b) != `{"repositories":["acme/x"]}` {
		t.Errorf("the repositories are %s", b)
	}
	for _, as := range []string{asRival, asNode, "", "stranger"} {
		w.ask(403, "", as, "POST", "/v2/acme/x/blobs/uploads/", "")
		w.ask(403, "", as, "PUT", "/v2/acme/x/manifests/latest", manifestOf(blob))
	}
	w.ask(400, "PAGINATION_NUMBER_INVALID", asAcme, "GET", "/v2/acme/x/tags/list?n=-1", "")
	w.ask(405, "UNSUPPORTED", asAcme, "POST", "/v2/acme/x/manifests/latest", "")
	w.ask(405, "UNSUPPORTED", asOperator, "DELETE", "/v2/acme/x/blobs/"+blob, "")
	w.ask(403, "", asAcme, "DELETE", "/v2/acme/x/manifests/latest", "")

	// What an operator deletes does not come back: a tag, or a digest with its tags.
	w.ask(201, "", asAcme, "PUT", "/v2/acme/x/manifests/other", manifestOf(blob), "Content-Type", manifestType)
	for _, gone := range []string{"other", manifest} {
		w.ask(202, "", asOperator, "DELETE", "/v2/acme/x/manifests/"+gone, "")
		w.ask(404, "MANIFEST_UNKNOWN", asOperator, "DELETE", "/v2/acme/x/manifests/"+gone, "")
		w.open()
		w.ask(404, "", asAcme, "GET", "/v2/acme/x/manifests/"+gone, "")
		if gone == "other" {
			w.ask(200, "", asAcme, "GET", "/v2/acme/x/manifests/latest", "")
		}
	}
	w.ask(404, "", asAcme, "GET", "/v2/acme/x/manifests/latest", "")
}

// TestImageQuota: a tenant's users fill their share of the disk and no more, in
// whatever way.
func TestImageQuota(t *testing.T) {
	w := newImages(t) // of a mebibyte
	data := randomText(600 << 10)
	w.push(asAcme, "acme/x", data)
	more := randomText(600 << 10)
	refused := func(as, method, path string, body io.Reader) {
		t.Helper()
		a, text, err := w.try(as, method, path, body)
		if err != nil || a.StatusCode != http.StatusInsufficientStorage || !strings.Contains(text, "the images of tenant acme would take 2Mi, and it may have 1Mi") {
			t.Errorf("it is answered %v %s, %v", a, text, err)
		}
	}
	whole := "/v2/acme/x/blobs/uploads/?digest=" + digestOf(more)
	refused(asAcme, "POST", whole, strings.NewReader(more))
	refused(asAcme, "POST", whole, io.MultiReader(strings.NewReader(more))) // of unknown length
	at := w.begin(asAcme, "acme/y")
	w.ask(202, "", asAcme, "PATCH", at, more[:300<<10])
	refused(asAcme, "PATCH", at, io.MultiReader(strings.NewReader(more[300<<10:])))
	w.ask(404, "BLOB_UPLOAD_UNKNOWN", asAcme, "PUT", at+"?digest="+digestOf(more), "")
	if left := w.files(w.im.uploadDir); len(left) > 0 {
		t.Errorf("refused uploads are left: %v", left)
	}
	// Many at once do not get past it together.
	var through atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			body := randomText(200 << 10)
			a, text, err := w.try(asAcme, "POST", "/v2/acme/x/blobs/uploads/?digest="+digestOf(body), io.MultiReader(strings.NewReader(body)))
			if err == nil && a.StatusCode == 201 {
				through.Add(1)
			} else if err != nil || a.StatusCode != http.StatusInsufficientStorage {
				t.Errorf("it is answered %v %s, %v", a, text, err)
			}
		})
	}
	if all.Wait(); through.Load() > 2 {
		t.Errorf("%d of 200 KiB have found room in 424", through.Load())
	}
	// What is there may be named, and used again, and others are not in the way.
	w.ask(201, "", asAcme, "PUT", "/v2/acme/x/manifests/latest", manifestOf(digestOf(data)), "Content-Type", manifestType)
	w.push(asRival, "rival/x", more)
	w.push(asOperator, "acme/x", more)
	refused2, text, err := w.try(asAcme, "POST", "/v2/acme/x/blobs/uploads/?digest="+digestOf("x"), strings.NewReader("x"))
	if err != nil || refused2.StatusCode != http.StatusInsufficientStorage {
		t.Errorf("what an operator pushed for a tenant is not the tenant's: %v %s, %v", refused2, text, err)
	}
	w.ask(201, "", asAcme, "PUT", "/v2/acme/x/manifests/again", manifestOf(digestOf(data)), "Content-Type", manifestType)
	w.open()
	if got := w.im.used("acme"); got != 600<<10 {
		t.Errorf("after a new start acme has %d bytes; its manifests name 600 KiB", got)
	}
}

// TestManifestsAreCounted: they are in memory.
func TestManifestsAreCounted(t *testing.T) {
	w := newImages(t)
	blob := w.push(asAcme, "acme/x", "data")
	put := func(status int, as, repo, tag, manifest string) {
		t.Helper()
		w.ask(status, "", as, "PUT", "/v2/"+repo+"/manifests/"+tag, manifest, "Content-Type", manifestType)
	}
	m := manifestOf(blob)
	put(201, asAcme, "acme/x", "latest", m)
	fill := func(n int, size int64) {
		w.im.mu.Lock()
		defer w.im.mu.Unlock()
		for i := range n {
			p := repositoryURL{kind: kindManifest, repo: "acme/many", tenant: "acme", last: fmt.Sprint("v", i)}
			w.im.manifests[p.to(p.kind, p.last)] = &manifest{repositoryURL: p, size: size}
		}
	}
	fill(maxManifests-3, 100)
	put(507, asAcme, "acme/x", "next", m+" ") // a digest and a tag
	put(201, asAcme, "acme/x", "next", m)     // a tag
	put(507, asAcme, "acme/y", digestOf(m), m)
	put(201, asAcme, "acme/x", "latest", m) // as before
	put(404, asRival, "rival/x", "latest", m)
	put(201, asOperator, "acme/x", "operators", m)
	w.open()
	fill(16, maxManifest)
	put(507, asAcme, "acme/x", "more", m)
	w.open()
	w.ask(413, "SIZE_INVALID", asAcme, "PUT", "/v2/acme/x/manifests/latest", m+strings.Repeat(" ", maxManifest), "Content-Type", manifestType)
	w.ask(400, "NAME_INVALID", asAcme, "PUT", "/v2/acme/"+strings.Repeat("x", 200)+"/manifests/latest", m, "Content-Type", manifestType)
	if left := w.files(w.im.uploadDir); len(left) > 0 {
		t.Errorf("there are uploads left: %v", left)
	}
}

// TestImagesLeaveTheDisk: the store needs room, whatever is pushed, and by whom.
func TestImagesLeaveTheDisk(t *testing.T) {
	w := newImages(t)
	var free atomic.Int64
	w.im.free = func() (int64, bool) { return free.Load(), true }
	full := func(method, path string, body io.Reader) {
		t.Helper()
		a, text, err := w.try(asOperator, method, path, body)
		if err != nil || a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "is full: the image does not fit") {
			t.Errorf("on a full disk it is answered %v %s, %v", a, text, err)
		}
	}
	data := randomText(2000)
	post := "/v2/acme/x/blobs/uploads/?digest=" + digestOf(data)
	free.Store(imageReserve + 1999)
	full("POST", post, strings.NewReader(data))
	// Of unknown length: it is found out while it comes.
	free.Store(imageReserve)
	var looks, sent atomic.Int64
	w.im.free = func() (int64, bool) { return imageReserve + 10<<20 - looks.Add(1)*5<<20, true }
	full("POST", post, readerFunc(func(b []byte) (int, error) { // read on while the answer is here
		if sent.Add(int64(len(b))) > 64<<20 {
			return 0, io.EOF
		}
		return len(b), nil
	}))
	if looks.Load() != 3 || sent.Load() > 40<<20 {
		t.Errorf("of 64 MiB are sent %d bytes, and %d times the disk was looked at", sent.Load(), looks.Load())
	}
	w.im.free = func() (int64, bool) { return free.Load(), true }
	at := w.begin(asOperator, "acme/x")
	free.Store(imageReserve - 1)
	full("PATCH", at, io.MultiReader(strings.NewReader(data)))
	full("PUT", "/v2/acme/x/manifests/latest", strings.NewReader(manifestOf(digestOf("x"))))
	for _, dir := range []string{w.im.uploadDir, w.im.blobDir, w.im.manifestDir} {
		if left := w.files(dir); len(left) > 0 {
			t.Errorf("in %s is left %v", dir, left)
		}
	}
	free.Store(imageReserve + 2000)
	w.push(asOperator, "acme/x", data)
	if e := unwritten(w.im.dir, fmt.Errorf("write: %w", unix.ENOSPC)); !strings.Contains(e.Error(), "is full") {
		t.Errorf("no space left is told as %v", e)
	}
	if e := unwritten(w.im.dir, errors.New("write: input/output error")); onpath.CodeOf(e) != onpath.CodeUnavailable || strings.Contains(e.Error(), "is full") {
		t.Errorf("another failure is told as %v", e)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestImagesOfEarlierVersions: manifests of tags were one file, and uploads lay
// among the blobs.
func TestImagesOfEarlierVersions(t *testing.T) {
	w := newImages(t)
	manifest, blob := w.image(asAcme, "acme/x", "latest")
	byDigest := w.im.manifestFile(w.im.manifests["/v2/acme/x/manifests/"+manifest])
	if err := os.Remove(byDigest); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.im.blobDir+"/upload-123", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.open()
	if got := w.files(w.im.blobDir); !slices.Equal(got, []string{strings.TrimPrefix(blob, "sha256:")}) {
		t.Errorf("the blobs are %v", got)
	}
	// The tag moves, and the digest stays.
	w.image(asAcme, "acme/x", "latest")
	w.open()
	w.ask(200, "", asNode, "GET", "/v2/acme/x/manifests/"+manifest, "")
	// A tag is of one type: the last.
	w.ask(201, "", asAcme, "PUT", "/v2/acme/x/manifests/latest", manifestOf(blob), "Content-Type", "application/aaa")
	w.ask(201, "", asAcme, "PUT", "/v2/acme/x/manifests/latest", manifestOf(blob)+" ", "Content-Type", "application/a")
	w.open()
	a := w.ask(200, "", asNode, "GET", "/v2/acme/x/manifests/latest", "")
	if b, _ := io.ReadAll(a.Body); string(b) != manifestOf(blob)+" " || a.Header.Get("Content-Type") != "application/a" {
		t.Errorf("the tag is %s %s", a.Header, b)
	}
}
