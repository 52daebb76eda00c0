package client

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/onpath/onpath"
)

// made are images for a test, by what they are for.
type made struct{ *testing.T }

// image is one whose configuration names a platform: os/architecture[/variant].
func (m made) image(platform string) v1.Image {
	m.Helper()
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		m.Fatal(err)
	}
	image, err := random.Image(64, 1)
	if err != nil {
		m.Fatal(err)
	}
	c, err := image.ConfigFile()
	if err != nil {
		m.Fatal(err)
	}
	c.OS, c.Architecture, c.Variant = p.OS, p.Architecture, p.Variant
	if image, err = mutate.ConfigFile(image, c); err != nil {
		m.Fatal(err)
	}
	return mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// chart is an artifact as Helm writes it.
func (m made) chart() v1.Image {
	return mutate.ConfigMediaType(m.image("linux/amd64"), "application/vnd.cncf.helm.config.v1+json")
}

// part is an image or an index within an index.
type part struct {
	what     mutate.Appendable
	platform string // empty: not told
	name     string
	lost     bool // it is named and not there
	record   bool // of a build
}

func (m made) index(parts ...part) v1.ImageIndex {
	m.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range parts {
		add := mutate.IndexAddendum{Add: p.what, Descriptor: v1.Descriptor{Annotations: map[string]string{}}}
		if p.platform != "" {
			add.Platform, _ = v1.ParsePlatform(p.platform)
		}
		if p.name != "" {
			add.Annotations[shortName] = p.name
		}
		if p.record {
			add.Annotations[record] = "attestation-manifest"
		}
		index = mutate.AppendManifests(index, add)
	}
	return index
}

// folder writes an index as a layout, without what is lost.
func (m made) folder(index v1.ImageIndex, lost ...part) string {
	m.Helper()
	dir := filepath.Join(m.TempDir(), "tool")
	if _, err := layout.Write(dir, index); err != nil {
		m.Fatal(err)
	}
	for _, p := range lost {
		if p.lost {
			h, err := p.what.(v1.Image).Digest()
			if err == nil {
				err = os.Remove(filepath.Join(dir, "blobs", h.Algorithm, h.Hex))
			}
			if err != nil {
				m.Fatal(err)
			}
		}
	}
	return dir
}

// archive makes a tar archive of a folder, through a compressor.
func (m made) archive(dir, name string, compress func(io.Writer) io.WriteCloser) string {
	m.Helper()
	path := filepath.Join(m.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		m.Fatal(err)
	}
	defer f.Close()
	out := compress(f)
	w := tar.NewWriter(out)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), out.Close()); err != nil {
		m.Fatal(err)
	}
	return path
}

func (m made) docker(images map[string]v1.Image) string {
	m.Helper()
	path, all := filepath.Join(m.TempDir(), "saved.tar"), map[name.Reference]v1.Image{}
	for called, image := range images {
		tag, err := name.NewTag(called)
		if err != nil {
			m.Fatal(err)
		}
		all[tag] = image
	}
	if err := tarball.MultiRefWriteToFile(path, all); err != nil {
		m.Fatal(err)
	}
	return path
}

func (m made) file(name, content string) string {
	m.Helper()
	path := filepath.Join(m.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.Fatal(err)
	}
	return path
}

type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

func uncompressed(w io.Writer) io.WriteCloser { return keepOpen{w} }

// TestImageOfFile: of all that a file holds, the image for nodes is taken; where there is
// none, or there are several, it is said before anything is sent, with a remedy.
func TestImageOfFile(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the cases are written for amd64")
	}
	m := made{t}
	const unknown = "unknown/unknown"
	good, baseline := m.image("linux/amd64"), m.image("linux/amd64")
	arm, v3, untold := m.image("linux/arm64"), m.image("linux/amd64/v3"), m.image("linux/amd64")
	windows, freebsd, other := m.image("windows/amd64"), m.image("freebsd/amd64"), m.image("linux/amd64")
	zst := func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }
	gz := func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }
	one := m.folder(m.index(part{what: good}))
	whole, err := os.ReadFile(m.archive(one, "x.tar", uncompressed))
	if err != nil {
		t.Fatal(err)
	}
	lost := part{what: arm, platform: "linux/arm64", lost: true}
	for what, c := range map[string]struct {
		path string
		want v1.Image
		says []string
	}{
		"a folder":                      {path: one, want: good},
		"an archive":                    {path: m.archive(one, "a.tar", uncompressed), want: good},
		".tar.gz":                       {path: m.archive(one, "a.tar.gz", gz), want: good},
		".tgz":                          {path: m.archive(one, "a.tgz", gz), want: good},
		".tar.zst":                      {path: m.archive(one, "a.tar.zst", zst), want: good},
		"docker's, compressed":          {path: m.file("d.tgz", gzipped(t, m.docker(map[string]v1.Image{"a:1": good}))), want: good},
		"a record of a build":           {path: m.folder(m.index(part{what: other, platform: unknown}, part{what: good, platform: "linux/amd64"})), want: good},
		"a record without a platform":   {path: m.folder(m.index(part{what: other, record: true}, part{what: good})), want: good},
		"another platform not there":    {path: m.folder(m.index(lost, part{what: good, platform: "linux/amd64"}), lost), want: good},
		"Windows first":                 {path: m.folder(m.index(part{what: windows, platform: "windows/amd64"}, part{what: good, platform: "linux/amd64"})), want: good},
		"Windows first, not told":       {path: m.folder(m.index(part{what: windows}, part{what: good})), want: good},
		"the second nested index":       {path: m.folder(m.index(part{what: m.index(part{what: arm, platform: "linux/arm64"})}, part{what: m.index(part{what: good, platform: "linux/amd64"})})), want: good},
		"v3 before the baseline":        {path: m.folder(m.index(part{what: v3, platform: "linux/amd64/v3"}, part{what: baseline, platform: "linux/amd64"})), want: baseline},
		"v3, told by its configuration": {path: m.folder(m.index(part{what: v3}, part{what: baseline})), want: baseline},
		"v3 alone":                      {path: m.folder(m.index(part{what: v3, platform: "linux/amd64/v3"})), want: v3},
		"one image of two names":        {path: m.folder(m.index(part{what: good, name: "a:1"}, part{what: good, name: "a:2"})), want: good},
		"nothing told at all":           {path: m.folder(m.index(part{what: silent(t, untold)})), want: silent(t, untold)},
		"Windows alone":                 {path: m.folder(m.index(part{what: windows, platform: "windows/amd64"})), says: []string{"no image for linux/amd64, but one for windows/amd64", "--platform linux/amd64"}},
		"FreeBSD alone, not told":       {path: m.folder(m.index(part{what: freebsd})), says: []string{"no image for linux/amd64, but one for freebsd/amd64"}},
		"arm64, not told":               {path: m.folder(m.index(part{what: arm})), says: []string{"no image for linux/amd64, but one for linux/arm64"}},
		"arm64, told as amd64":          {path: m.folder(m.index(part{what: arm, platform: "linux/amd64"})), says: []string{"but one for linux/arm64"}},
		"arm64 of docker":               {path: m.docker(map[string]v1.Image{"a:1": arm}), says: []string{"but one for linux/arm64"}},
		"two images":                    {path: m.folder(m.index(part{what: good, name: "b-one"}, part{what: other, name: "b-two"})), says: []string{"2 images", "b-one, b-two", "docker save NAME -o FILE"}},
		"two images without names":      {path: m.folder(m.index(part{what: good}, part{what: other})), says: []string{"2 images", digest(t, good), digest(t, other)}},
		"two images, one of a variant":  {path: m.folder(m.index(part{what: v3, name: "b-one"}, part{what: other, name: "b-two"})), says: []string{"2 images", "b-one"}},
		"two of docker":                 {path: m.docker(map[string]v1.Image{"a:1": good, "b:1": other}), says: []string{"2 images", "a:1", "b:1", "a file of its own"}},
		"a Helm chart":                  {path: m.folder(m.index(part{what: m.chart()})), says: []string{"no image", "an artifact of type application/vnd.cncf.helm.config.v1+json"}},
		"an empty index":                {path: m.folder(m.index()), says: []string{"it holds no image", "OCI layout"}},
		"the image itself not there":    {path: m.folder(m.index(part{what: good}), part{what: good, lost: true}), says: []string{"cannot be read"}},
		"an archive of files":           {path: m.archive(filepath.Dir(m.file("hosts", "x")), "fs.tar", uncompressed), says: []string{"neither an index.json nor a manifest.json", "docker save"}},
		"a folder of files":             {path: filepath.Dir(m.file("hosts", "x")), says: []string{"no index.json", "OCI layout"}},
		"a broken archive":              {path: m.file("a.tar", string(whole[:len(whole)/2])), says: []string{"breaks off", "anew"}},
		"no archive":                    {path: m.file("a.tar", strings.Repeat("x", 600)), says: []string{"not a tar archive", "OCI layout"}},
		"by xz":                         {path: m.file("a.tar.xz", "\xfd7zXZ\x00"), says: []string{"compressed by xz", "xz -d "}},
	} {
		image, done, err := openImage(c.path)
		if c.want == nil {
			if onpath.CodeOf(err) != onpath.CodeInvalid {
				t.Errorf("%s: %v", what, err)
				continue
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%s: %v\n does not say %q", what, err, s)
				}
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got := digest(t, image); got != digest(t, c.want) && what != "docker's, compressed" { // whose manifest is made here
			t.Errorf("%s: took %s", what, got)
		}
		if layers, err := image.Layers(); err != nil || len(layers) != 1 {
			t.Errorf("%s: layers %v, %v", what, layers, err)
		} else if _, err := layers[0].Compressed(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		done()
	}
}

func digest(t *testing.T, image v1.Image) string {
	t.Helper()
	h, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// silent is an image whose configuration does not say what it runs on.
func silent(t *testing.T, image v1.Image) v1.Image {
	t.Helper()
	c, err := image.ConfigFile()
	if err == nil {
		c = c.DeepCopy()
		c.OS, c.Architecture = "", ""
		image, err = mutate.ConfigFile(image, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func gzipped(t *testing.T, path string) string {
	t.Helper()
	in, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	w := gzip.NewWriter(&out)
	if _, err := w.Write(in); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
