package container

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// archiveOf is a layer whose archive write writes.
func archiveOf(t *testing.T, write func(w *tar.Writer)) v1.Image {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	write(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return imageOf(t, b.Bytes())
}

func imageOf(t *testing.T, archive []byte) v1.Image {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	cf, _ := img.ConfigFile()
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

func entry(t *testing.T, w *tar.Writer, h tar.Header, content []byte) {
	t.Helper()
	h.Size = int64(len(content))
	if h.Mode == 0 {
		h.Mode = 0o644
	}
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
}

// changed changes the first header of an archive, and its sum.
func changed(archive []byte, change func(head []byte)) {
	head := archive[:512]
	change(head)
	sum := 8 * int(' ') // of the field that it stands in
	for i, c := range head {
		if i < 148 || i >= 156 {
			sum += int(c)
		}
	}
	copy(head[148:], fmt.Sprintf("%06o\x00 ", sum))
}

// sparse is an archive with a file of 1 GiB, of which it has nothing.
func sparse(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	entry(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "big", Format: tar.FormatGNU}, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	changed(b.Bytes(), func(head []byte) {
		head[156] = tar.TypeGNUSparse
		copy(head[483:495], "10000000000\x00") // its size
	})
	return b.Bytes()
}

// TestHostileImages: archives that would fill the disk, or write elsewhere, do neither; of
// those that are refused nothing stays.
func TestHostileImages(t *testing.T) {
	opt := machine(t)
	trap := filepath.Join(opt.StateDir, "trap") // outside of every image
	if err := os.WriteFile(trap, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(trap) })
	d := open(t, opt)
	defer d.Close()
	d.bounds = bounds{pulled: 1 << 20, document: 64 << 10, unpacked: 8 << 20, files: 100, small: 1 << 20, ratio: 100}
	zeros := make([]byte, 1<<20)
	noise := func(n int) []byte {
		b := make([]byte, n)
		x := uint32(1)
		for i := range b {
			x = x*1664525 + 1013904223
			b[i] = byte(x >> 24)
		}
		return b
	}
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	up := strings.Repeat("../", 12)
	for what, tc := range map[string]struct {
		image func() v1.Image
		says  string // "": it unpacks
	}{
		"more bytes than the bound": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				for i := range 9 {
					entry(t, w, file(fmt.Sprint("f", i)), append(noise(40<<10), zeros[:1<<20-40<<10]...))
				}
			})
		}, "more than 8Mi"},
		"a gzip bomb": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				for i := range 7 {
					entry(t, w, file(fmt.Sprint("f", i)), zeros)
				}
			})
		}, "100 times"},
		"a bomb behind the archive's end": {func() v1.Image {
			return imageOf(t, make([]byte, 7<<20))
		}, "100 times"},
		"too many files": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				for i := range 101 {
					entry(t, w, file(fmt.Sprint("f", i)), nil)
				}
			})
		}, "more than 100 files"},
		"too many links": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				entry(t, w, file("f"), noise(1000))
				for i := range 101 {
					entry(t, w, tar.Header{Typeflag: tar.TypeLink, Name: fmt.Sprint("l", i), Linkname: "f"}, nil)
				}
			})
		}, "more than 100 files"},
		"a sparse file": {func() v1.Image { return imageOf(t, sparse(t)) }, "its files have more than 8Mi"},
		"a huge header": {func() v1.Image {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			entry(t, w, file("f"), noise(3<<20))
			changed(b.Bytes(), func(head []byte) { head[156] = tar.TypeXHeader })
			return imageOf(t, b.Bytes())
		}, "header"},
		"a name that is too long": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) { entry(t, w, file(strings.Repeat("n", 5000)), nil) })
		}, " "},
		"an archive cut short": {func() v1.Image {
			return imageOf(t, append(make([]byte, 0), noise(700)...))
		}, " "},
		"a path that leads out": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) { entry(t, w, file(up+trap), []byte("escaped")) })
		}, ""},
		"a link that leads out, and a file behind it": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				entry(t, w, tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: filepath.Dir(trap)}, nil)
				entry(t, w, file("out/trap"), []byte("escaped"))
			})
		}, ""},
		"a link up, and a file behind it": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				entry(t, w, tar.Header{Typeflag: tar.TypeSymlink, Name: "up", Linkname: up}, nil)
				entry(t, w, file("up"+trap), []byte("escaped"))
			})
		}, ""},
		"a hard link to a file of the node": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				entry(t, w, tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: up + trap}, nil)
				entry(t, w, file("hard"), []byte("escaped"))
			})
		}, " "},
		"a whiteout of a file of the node": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) { entry(t, w, file(up+filepath.Dir(trap)+"/.wh.trap"), nil) })
		}, ""},
		"a whiteout of the folder above": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) { entry(t, w, file(".wh..."), nil) })
		}, " "},
		"a device of the node, and what overlayfs keeps": {func() v1.Image {
			return archiveOf(t, func(w *tar.Writer) {
				entry(t, w, tar.Header{Typeflag: tar.TypeBlock, Name: "disk", Mode: 0o666, Devmajor: 254, Devminor: 0}, nil)
				entry(t, w, tar.Header{Typeflag: tar.TypeChar, Name: "mem", Mode: 0o666, Devmajor: 1, Devminor: 1}, nil)
				entry(t, w, tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755,
					PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.mine": "1"}}, nil)
			})
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			lay := filepath.Join(t.TempDir(), "layout")
			p, err := layout.Write(lay, empty.Index)
			if err == nil {
				err = p.AppendImage(tc.image())
			}
			if err != nil {
				t.Fatal(err)
			}
			err = d.Prepare(t.Context(), &onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: lay}}, nil)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v", err)
			}
			t.Log(err)
			if got, err := os.ReadFile(trap); err != nil || string(got) != "untouched" {
				t.Fatalf("it wrote outside: %q, %v", got, err)
			}
			key, _, err := imageKey(lay)
			if err != nil {
				t.Fatal(err)
			}
			img, err := d.client.ImageService().Get(d.scope(t.Context()), key)
			if (err == nil) != (tc.says == "") {
				t.Errorf("the image is %q, %v", img.Name, err)
			}
		})
	}
	devices, _ := filepath.Glob(filepath.Join(opt.StateDir, "containerd/root/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/*"))
	seen := false
	for _, f := range devices {
		var st unix.Stat_t
		if err := unix.Lstat(f, &st); err != nil {
			t.Fatal(err)
		}
		if k := st.Mode & unix.S_IFMT; (k == unix.S_IFBLK || k == unix.S_IFCHR) && st.Rdev != 0 {
			t.Errorf("%s is a device", f)
		}
		if filepath.Base(f) == "d" {
			_, err := unix.Lgetxattr(f, "trusted.overlay.redirect", make([]byte, 100))
			_, mine := unix.Lgetxattr(f, "user.mine", make([]byte, 100))
			seen = err == unix.ENODATA && (mine == nil || !keepsAttributes(t, filepath.Dir(f)))
		}
	}
	if !seen {
		t.Errorf("attributes of overlayfs were taken, or all were lost: %v", devices)
	}
}

// keepsAttributes reports whether files in a folder may have attributes of users: those of tmpfs
// may since Linux 6.6.
func keepsAttributes(t *testing.T, dir string) bool {
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	err = unix.Fsetxattr(int(f.Fd()), "user.mine", []byte{1}, 0)
	if err != nil && err != unix.EOPNOTSUPP {
		t.Fatal(err)
	}
	return err == nil
}

// TestHostileRegistry: a registry that sends more than is kept, or leads inward, is left.
func TestHostileRegistry(t *testing.T) {
	good := registry.New()
	var endless atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if endless.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}
		good.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	digest := push(t, server.URL+"/v2/tenant/small", archiveOf(t, func(w *tar.Writer) {
		entry(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "f"}, []byte("small"))
	}))
	d := open(t, machine(t))
	defer d.Close()
	small := host + "/tenant/small@" + digest.String()
	for _, tc := range []struct {
		image   string
		endless bool
		bounds  bounds
		says    string
	}{
		{small, true, imageBounds, "past expected size"},
		{small, false, bounds{pulled: 4 << 20, document: 100}, "has more than 100"},
		{small, false, bounds{pulled: 500, document: 4 << 20}, "its layers have more than 500"},
		{small, false, imageBounds, ""},
		{"169.254.169.254/x/y:1", false, imageBounds, "where no registry is"},
	} {
		endless.Store(tc.endless)
		d.bounds = tc.bounds
		err := d.Prepare(t.Context(), &onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: tc.image}}, nil)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.image, err)
		}
	}
}

// TestForeignImages: an image that the node cannot run is refused for what it is, whether
// its configuration or its index says so.
func TestForeignImages(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the cases are written for amd64")
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	tool := archiveOf(t, func(w *tar.Writer) { entry(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "f"}, []byte("tool")) })
	of := func(os, arch string) v1.Image {
		c, err := tool.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c = c.DeepCopy()
		c.OS, c.Architecture = os, arch
		img, err := mutate.ConfigFile(tool, c)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	oci := mutate.MediaType(tool, types.OCIManifestSchema1)
	d := open(t, machine(t))
	defer d.Close()
	const remedy = "name an image for linux/amd64"
	for name, tc := range map[string]struct {
		what  v1.Image
		index string // it is in an index, which says that it is for this system
		says  string // "": it is prepared
	}{
		"windows":  {of("windows", "amd64"), "", "it is for windows/amd64"},
		"windows2": {of("windows", "amd64"), "windows", "it holds none for linux/amd64"},
		"windows3": {of("windows", "amd64"), "linux", "it is for windows/amd64"},
		"freebsd":  {of("freebsd", "amd64"), "", "it is for freebsd/amd64"},
		"arm":      {of("linux", "arm64"), "", "it is for linux/arm64"},
		"silent":   {of("", ""), "", ""},
		"linux":    {of("linux", "amd64"), "linux", ""},
		"chart":    {mutate.ConfigMediaType(oci, "application/vnd.cncf.helm.config.v1+json"), "", "it is an artifact of type application/vnd.cncf.helm.config.v1+json"},
	} {
		repo := server.URL + "/v2/tenant/" + name
		digest := push(t, repo, tc.what)
		if tc.index != "" {
			index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: tc.what, Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: tc.index, Architecture: "amd64"}}})
			raw, err := index.RawManifest()
			if err == nil {
				digest, err = index.Digest()
			}
			if err != nil {
				t.Fatal(err)
			}
			kind, _ := index.MediaType()
			send(t, "PUT", repo+"/manifests/all", string(kind), raw)
		}
		err := d.Prepare(t.Context(), &onpath.FunctionSpec{Container: &onpath.ContainerSpec{
			Image: strings.TrimPrefix(server.URL, "http://") + "/tenant/" + name + "@" + digest.String()}}, nil)
		switch {
		case tc.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.says != "" && (onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), remedy)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnpackedAgain: an image whose snapshots were dropped between its fetch and the look at
// it, as happens when another image of the same layers is deleted, is unpacked once more.
func TestUnpackedAgain(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	digest := push(t, server.URL+"/v2/tenant/tool", archiveOf(t, func(w *tar.Writer) {
		entry(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "f"}, []byte("tool"))
	}))
	d := open(t, machine(t))
	defer d.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/tenant/tool@" + digest.String()
	if err := d.Prepare(t.Context(), &onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: image}}, nil); err != nil {
		t.Fatal(err)
	}
	img, err := d.client.GetImage(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	diffs, err := img.RootFS(t.Context())
	if err == nil {
		err = d.client.SnapshotService(d.opt.Snapshotter).Remove(t.Context(), identity.ChainID(diffs).String())
	}
	if err != nil || d.unpacked(t.Context(), image) != nil {
		t.Fatalf("the image's snapshot is still there: %v", err)
	}
	if img, err := d.unpackedAgain(t.Context(), image); err != nil || d.unpacked(t.Context(), img.Name()) == nil {
		t.Errorf("not unpacked: %v", err)
	}
}
