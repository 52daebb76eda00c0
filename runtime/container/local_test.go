package container

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// soon fails the test if f takes long, as the opening of a pipe does.
func soon(t *testing.T, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s: it still waits", what)
		return nil
	}
}

// TestLocalImageKinds: of what a path leads to only files and folders are opened.
func TestLocalImageKinds(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mkfifo(in("pipe"), 0o600))
	must(os.Symlink(in("pipe"), in("link")))
	must(os.Symlink("/dev/zero", in("device")))
	must(os.WriteFile(in("empty"), nil, 0o600))
	must(os.WriteFile(in("secret"), []byte(`{"of": "the node"}`), 0o600))
	for _, name := range []string{"piped", "leading", "large"} {
		must(os.Mkdir(in(name), 0o700))
	}
	must(unix.Mkfifo(in("piped/index.json"), 0o600))
	must(os.Symlink("../secret", in("leading/index.json")))
	must(os.WriteFile(in("large/index.json"), make([]byte, 4<<20+1), 0o600))
	for path, says := range map[string]string{
		in("pipe"): "neither a file nor a folder", in("link"): "neither a file nor a folder",
		"/dev/zero": "neither a file nor a folder", in("device"): "neither a file nor a folder",
		in("empty"): "is empty", "/proc/uptime": "is empty",
		in("piped"): "neither a file nor a folder", in("leading"): "neither a file nor a folder", in("large"): "larger than 4 MiB",
	} {
		err := soon(t, path, func() error { _, _, err := imageKey(path); return err })
		if onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("image %s: %v (%s); must say: %s", path, err, onpath.CodeOf(err), says)
		}
	}
	if _, _, err := imageKey(in("none")); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("an image that is not there: %v", err)
	}
	for _, path := range []string{in("pipe"), "/dev/zero"} {
		if err := soon(t, path, func() error { _, err := openArchive(path); return err }); err == nil {
			t.Errorf("%s is streamed", path)
		}
	}
}

// TestLayoutFolder: a folder is streamed with all that is in it, and nothing else.
func TestLayoutFolder(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "layout")
	files := map[string]string{"index.json": "{}", "oci-layout": "{}", "blobs/sha256/aa": strings.Repeat("a", 100_000), "blobs/sha256/none": ""}
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(folder, filepath.Join(dir, "link")); err != nil { // the operator's to make
		t.Fatal(err)
	}
	read := func() (map[string]string, error) {
		r, err := openArchive(filepath.Join(dir, "link"))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		got := map[string]string{}
		for archive := tar.NewReader(r); ; {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return got, nil
			}
			var data bytes.Buffer
			if err == nil {
				_, err = io.Copy(&data, archive)
			}
			if err != nil {
				return got, err
			}
			if h.Typeflag == tar.TypeReg {
				got[h.Name] = data.String()
			}
		}
	}
	if got, err := read(); err != nil || !maps.Equal(got, files) {
		t.Errorf("streamed: %v, %v", slices.Sorted(maps.Keys(got)), err)
	}
	if index, err := readIndex(filepath.Join(dir, "link")); err != nil || string(index) != "{}" {
		t.Errorf("its index: %q, %v", index, err)
	}
	if err := unix.Mkfifo(filepath.Join(folder, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := soon(t, "a pipe in it", func() error { _, err := read(); return err }); err == nil {
		t.Error("a folder with a pipe in it is streamed")
	}
}
