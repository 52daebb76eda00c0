package client

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/onpath/onpath"
)

// TestResolveImages: a tag gets the digest that it means now beside it, another one when the
// tag has moved; what no registry tells stays, and is said.
func TestResolveImages(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	tag := strings.TrimPrefix(server.URL, "http://") + "/acme/wall:1"
	push := func(seed int64) string {
		t.Helper()
		image, err := random.Image(seed, 1)
		if err != nil {
			t.Fatal(err)
		}
		data, err := image.RawManifest()
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/v2/acme/wall/manifests/1", bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", string(types.DockerManifestSchema2))
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		digest, err := image.Digest()
		if err != nil || answer.StatusCode != http.StatusCreated {
			t.Fatal(answer.Status, err)
		}
		return digest.String()
	}
	for seed := range int64(2) {
		want := tag + "@" + push(64+seed)
		refs, errs := ResolveImages(t.Context(), []string{tag, tag})
		if refs[tag] != want || len(errs) > 0 {
			t.Errorf("%v %v, want %s", refs, errs, want)
		}
	}
	none := strings.Replace(tag, ":1", ":none", 1)
	refs, errs := ResolveImages(t.Context(), []string{none, "127.0.0.1:1/acme/wall:1"})
	if len(refs) > 0 || onpath.CodeOf(errs[none]) != onpath.CodeNotFound || onpath.CodeOf(errs["127.0.0.1:1/acme/wall:1"]) != onpath.CodeUnavailable {
		t.Errorf("%v %v", refs, errs)
	}
	for image, want := range map[string]bool{
		tag: true, tag + "@sha256:12": false, onpath.HostImage: false, "./wall.tar": false, onpath.ImageHost + "/default/wall@sha256:12": false, "": false,
	} {
		if Tagged(image) != want {
			t.Errorf("%q is tagged: %v", image, !want)
		}
	}
}
