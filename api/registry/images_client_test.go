package registry

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// containerd is the client that nodes pull with; it can push, too.
type containerd struct {
	*imageWorld
	resolver remotes.Resolver
	ref      string // with the digest of the whole, or the parts would be pushed under its tag
}

func (w *imageWorld) containerd(as, repo, tag string, whole v1.Hash) containerd {
	host := strings.TrimPrefix(w.web.URL, "http://")
	hosts := func(string) ([]docker.RegistryHost, error) {
		return []docker.RegistryHost{{Client: &http.Client{Transport: roundTripAs(as)}, Host: host, Scheme: "http", Path: "/v2",
			Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve | docker.HostCapabilityPush}}, nil
	}
	return containerd{w, docker.NewResolver(docker.ResolverOptions{Hosts: hosts}), host + "/" + repo + ":" + tag + "@" + whole.String()}
}

func (c containerd) push(mediaType string, data []byte) {
	c.Helper()
	p, err := c.resolver.Pusher(c.Context(), c.ref)
	if err != nil {
		c.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	w, err := p.Push(c.Context(), d)
	if errdefs.IsAlreadyExists(err) {
		return
	} else if err != nil {
		c.Fatal(err)
	}
	defer w.Close()
	if _, err = w.Write(data); err == nil {
		err = w.Commit(c.Context(), d.Size, d.Digest)
	}
	if err != nil {
		c.Fatal(err)
	}
}

func (c containerd) pull(mediaType string, h v1.Hash, size int) []byte {
	c.Helper()
	f, err := c.resolver.Fetcher(c.Context(), c.ref)
	if err != nil {
		c.Fatal(err)
	}
	r, err := f.Fetch(c.Context(), ocispec.Descriptor{MediaType: mediaType, Digest: digest.Digest(h.String()), Size: int64(size)})
	if err != nil {
		c.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		c.Fatal(err)
	}
	return data
}

// eachPart calls f for all parts of an image, those first that others name.
func eachPart(t *testing.T, image v1.Image, f func(mediaType string, h v1.Hash, data []byte)) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		h, _ := l.Digest()
		m, _ := l.MediaType()
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		f(string(m), h, data)
	}
	m, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	config, _ := image.RawConfigFile()
	f(string(m.Config.MediaType), m.Config.Digest, config)
	manifest, _ := image.RawManifest()
	h, _ := image.Digest()
	f(string(m.MediaType), h, manifest)
}

// TestRegistry: the nodes' client pushes images of several platforms, and gets
// back what it pushed, also from a server that was started anew.
func TestRegistry(t *testing.T) {
	w := newImages(t)
	index, err := random.Index(10_000, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	whole, _ := index.Digest()
	raw, _ := index.RawManifest()
	m, _ := index.IndexManifest()
	repo := "acme/web/cache"
	push := w.containerd(asAcme, repo, "latest", whole)
	for _, d := range m.Manifests {
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		eachPart(t, image, func(mediaType string, _ v1.Hash, data []byte) { push.push(mediaType, data) })
	}
	push.push(string(m.MediaType), raw)
	if left := w.files(w.im.uploadDir); len(left) > 0 {
		t.Errorf("there are uploads left: %v", left)
	}
	for range 2 {
		for _, as := range []string{asNode, asAcme} {
			pull := w.containerd(as, repo, "latest", whole)
			for _, ref := range []string{pull.ref, strings.Split(pull.ref, "@")[0]} {
				_, d, err := pull.resolver.Resolve(t.Context(), ref)
				if err != nil || d.Digest.String() != whole.String() || d.Size != int64(len(raw)) {
					t.Fatalf("%s is %+v, %v", ref, d, err)
				}
			}
			if got := pull.pull(string(m.MediaType), whole, len(raw)); !bytes.Equal(got, raw) {
				t.Errorf("the index is %q", got)
			}
			for _, d := range m.Manifests {
				image, _ := index.Image(d.Digest)
				eachPart(t, image, func(mediaType string, h v1.Hash, data []byte) {
					if got := pull.pull(mediaType, h, len(data)); !bytes.Equal(got, data) {
						t.Errorf("%s %s came as %d bytes that are others", mediaType, h, len(got))
					}
				})
			}
		}
		w.open()
	}
	tags := w.ask(200, "", asAcme, "GET", "/v2/acme/web/cache/tags/list", "")
	if b, _ := io.ReadAll(tags.Body); string(b) != `{"name":"acme/web/cache","tags":["latest"]}` {
		t.Errorf("the tags are %s", b)
	}
	// The rival has none of it, and is told so.
	if _, _, err := w.containerd(asRival, repo, "latest", whole).resolver.Resolve(context.Background(), push.ref); err == nil {
		t.Error("a rival may look the image up")
	}
}
