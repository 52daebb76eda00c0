package ociimage

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"
)

// archive writes a tar of "path=content", "path/" and "path->hardlink" entries.
func archive(t *testing.T, entries ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, e := range entries {
		h := &tar.Header{Name: "./" + e, Mode: 0o755, ModTime: time.Now(), Typeflag: tar.TypeDir}
		var content string
		if name, target, ok := strings.Cut(e, "->"); ok {
			h.Name, h.Linkname, h.Typeflag = "./"+name, "./"+target, tar.TypeLink
		} else if name, text, ok := strings.Cut(e, "="); ok {
			content = text
			h.Name, h.Size, h.Typeflag = "./"+name, int64(len(text)), tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, content)
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return file
}

func contents(t *testing.T, layer string) []string {
	t.Helper()
	f, err := os.Open(layer)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			sort.Strings(out)
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(r)
		s := h.Name
		if h.Linkname != "" {
			s += "->" + h.Linkname
		}
		if len(data) > 0 {
			s += "=" + string(data)
		}
		if h.ModTime.Unix() != epoch {
			t.Errorf("%s has time %v", h.Name, h.ModTime)
		}
		out = append(out, s)
	}
}

func TestDelta(t *testing.T) {
	base := archive(t, "usr/", "usr/same=1", "usr/changed=1", "usr/gone=1", "usr/dir/", "usr/dir/a=1", "usr/dir/b=1", "usr/l1=x", "usr/l2->usr/l1", "usr/m1=x", "usr/m2->usr/m1", "var/log/old=1")
	next := archive(t, "usr/", "usr/same=1", "usr/changed=2", "usr/new=3", "usr/l1=x", "usr/l2->usr/l1", "usr/m1=y", "usr/m2->usr/m1",
		"var/log/", "var/log/squid/", "var/log/squid/access=1", "dev/null=", "usr/share/doc/a/changelog=1", "usr/share/doc/a/copyright=c")
	tree, err := readTree(base)
	if err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(t.TempDir(), "l.tar.gz")
	if err := writeDelta(tree, next, layer); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(contents(t, layer), " ")
	want := "usr/.wh.dir usr/.wh.gone usr/changed=2 usr/m1=y usr/m2->usr/m1 usr/new=3 usr/share/doc/a/copyright=c var/log/ var/log/squid/"
	if got != want {
		t.Errorf("delta\n%s\nwant\n%s", got, want)
	}
	if err := writeDelta(nil, base, layer); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(contents(t, layer), " "); !strings.Contains(got, "usr/same=1") || strings.Contains(got, "var/log/old") {
		t.Errorf("base layer: %s", got)
	}
}

// TestFilesOnly builds an image that needs no packages, twice.
func TestFilesOnly(t *testing.T) {
	t.Setenv("ONPATH_CACHE", t.TempDir())
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	recipe := "files: {/opt/run: {from: run.sh, mode: 0755}}\nentrypoint: [/opt/run]\nenv: {A: b}\n"
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(RecipeFile, recipe)
	if _, err := Build(t.Context(), dir, "", nil); err == nil {
		t.Fatal("built without its file")
	}
	write("run.sh", "#!/bin/sh\n")
	out := t.TempDir()
	var said []string
	first, err := Build(t.Context(), dir, out, func(s string) { said = append(said, s) })
	if err != nil || first.Cached || first.Size == 0 || !strings.HasPrefix(first.Digest, "sha256:") {
		t.Fatalf("%+v, %v", first, err)
	}
	if len(said) == 0 || !strings.HasPrefix(said[0], "tiny: ") {
		t.Errorf("progress: %q", said)
	}
	if _, err := os.Stat(filepath.Join(first.Path, "index.json")); err != nil || first.Path != filepath.Join(out, "tiny") {
		t.Errorf("no layout at %s: %v", first.Path, err)
	}
	again, err := Build(t.Context(), dir, out, nil)
	if err != nil || !again.Cached || again.Digest != first.Digest {
		t.Errorf("second build: %+v, %v", again, err)
	}
	write("run.sh", "#!/bin/sh\necho\n")
	changed, err := Build(t.Context(), dir, out, nil)
	if err != nil || changed.Cached || changed.Digest == first.Digest {
		t.Errorf("changed: %+v, %v", changed, err)
	}
	left, _ := filepath.Glob(filepath.Join(os.Getenv("ONPATH_CACHE"), "images", "tmp", "*"))
	if len(left) > 0 {
		t.Errorf("half made things are left: %v", left)
	}
}
