package registry

import (
	"os"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// use has a function name an image; "": no function does.
func (w *imageWorld) use(function, image string) {
	if w.used[function] = image; image == "" {
		delete(w.used, function)
	}
}

// sweep lets time pass, an hour at a time, with a sweep after each.
func (w *imageWorld) sweep(d time.Duration) {
	w.Helper()
	for ; d > 0; d -= sweepEvery {
		w.pass(min(d, sweepEvery))
		if err := w.registry.sweep(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *imageWorld) wantImage(there bool, repo, last, blob string) {
	w.Helper()
	status := 404
	if there {
		status = 200
	}
	w.ask(status, "", asOperator, "HEAD", "/v2/"+repo+"/manifests/"+last, "")
	if _, err := os.Stat(w.im.blobFile(blob)); (err == nil) != there {
		w.Fatalf("the blob of %s:%s: %v; it is to be there: %v", repo, last, err, there)
	}
}

// TestSweepKeepsWhatIsUsed: by digest, by tag, by no tag, and as a platform's part.
func TestSweepKeepsWhatIsUsed(t *testing.T) {
	w := newImages(t)
	host := onpath.ImageHost + "/"
	digest, blob := w.image(asAcme, "acme/digest", "")
	_, tagBlob := w.image(asAcme, "acme/tag", "v1")
	_, otherBlob := w.image(asAcme, "acme/tag", "v2")
	_, latestBlob := w.image(asAcme, "acme/latest", "latest")
	part, partBlob := w.image(asAcme, "acme/parts", "")
	index := `{"schemaVersion":2,"manifests":[{"mediaType":"` + manifestType + `","size":1,"digest":"` + part + `"}]}`
	w.ask(201, "", asAcme, "PUT", "/v2/acme/parts/manifests/all", index, "Content-Type", "application/vnd.oci.image.index.v1+json")
	whole := `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","size":1,"digest":"` + digestOf(index) + `"}]}`
	w.ask(201, "", asAcme, "PUT", "/v2/acme/parts/manifests/nested", whole, "Content-Type", "application/vnd.oci.image.index.v1+json")
	elsewhere, elsewhereBlob := w.image(asAcme, "acme/elsewhere", "")
	w.use("a", host+"acme/digest:any@"+digest)
	w.use("b", host+"acme/tag:v1")
	w.use("c", host+"acme/latest")
	w.use("d", host+"acme/parts:nested")
	w.use("e", "docker.io/acme/elsewhere@"+elsewhere)
	w.use("f", host+"rival/elsewhere@"+elsewhere)
	for range 2 {
		w.sweep(40 * time.Hour)
		w.wantImage(true, "acme/digest", digest, blob)
		w.wantImage(true, "acme/tag", "v1", tagBlob)
		w.wantImage(false, "acme/tag", "v2", otherBlob)
		w.wantImage(true, "acme/latest", "latest", latestBlob)
		w.wantImage(true, "acme/parts", part, partBlob)
		w.wantImage(true, "acme/parts", "nested", partBlob)
		w.wantImage(false, "acme/elsewhere", elsewhere, elsewhereBlob)
		w.open()
	}
	w.use("d", "")
	w.sweep(40 * time.Hour)
	w.wantImage(false, "acme/parts", part, partBlob)
	w.wantImage(true, "acme/tag", "v1", tagBlob)
}

// TestSweepCountsFromTheLastUse: not from the push.
func TestSweepCountsFromTheLastUse(t *testing.T) {
	w := newImages(t)
	digest, blob := w.image(asAcme, "acme/x", "")
	w.use("a", onpath.ImageHost+"/acme/x@"+digest)
	w.sweep(100 * time.Hour)
	w.use("a", "")
	w.sweep(imageKeep - time.Hour)
	w.wantImage(true, "acme/x", digest, blob)
	w.use("a", onpath.ImageHost+"/acme/x@"+digest)
	w.sweep(100 * time.Hour)
	w.use("a", "")
	w.use("what waits", onpath.ImageHost+"/acme/x@"+digest)
	w.sweep(100 * time.Hour)
	w.wantImage(true, "acme/x", digest, blob)
	w.use("what waits", "")
	w.sweep(imageKeep - 2*time.Hour) // a look at the manifest would make it new
	if _, err := os.Stat(w.im.blobFile(blob)); err != nil {
		t.Fatal(err)
	}
	w.sweep(3 * time.Hour)
	w.wantImage(false, "acme/x", digest, blob)
	if n := w.im.used("acme"); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// TestSweepTakesNothingFromUnderAPush: a blob that a client has found to be there
// stays until he can have named it.
func TestSweepTakesNothingFromUnderAPush(t *testing.T) {
	w := newImages(t)
	seen, unseen := w.push(asAcme, "acme/x", "seen"), w.push(asAcme, "acme/x", "unseen")
	kept, keptBlob := w.image(asAcme, "acme/y", "")
	w.sweep(imageKeep - time.Minute)
	w.ask(200, "", asAcme, "HEAD", "/v2/acme/x/blobs/"+seen, "")
	w.ask(200, "", asAcme, "HEAD", "/v2/acme/y/manifests/"+kept, "")
	w.sweep(20 * time.Hour)
	w.ask(404, "BLOB_UNKNOWN", asAcme, "GET", "/v2/acme/x/blobs/"+unseen, "")
	m := manifestOf(seen)
	w.ask(201, "", asAcme, "PUT", "/v2/acme/x/manifests/latest", m, "Content-Type", manifestType)
	w.wantImage(true, "acme/y", kept, keptBlob)
}

// TestSweepSparesWhatItCannotRead: a manifest that is unreadable for a while may
// name any blob.
func TestSweepSparesWhatItCannotRead(t *testing.T) {
	w := newImages(t)
	digest, blob := w.image(asAcme, "acme/x", "")
	w.use("a", onpath.ImageHost+"/acme/x@"+digest)
	file := w.im.manifestFile(w.im.manifests["/v2/acme/x/manifests/"+digest])
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil { // not even root can read it as a file
		t.Fatal(err)
	}
	w.open()
	for range 30 {
		w.pass(time.Hour)
		if err := w.registry.sweep(t.Context()); err == nil {
			t.Fatal("the sweep does not tell that a manifest cannot be read")
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	w.sweep(2 * time.Hour)
	w.wantImage(true, "acme/x", digest, blob)
}
