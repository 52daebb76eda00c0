package ociimage

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"
	"time"
)

// trimmed is left out of layers: what the package tools leave, and what the
// runtime mounts or programs make anew.
var trimmed = []string{
	"dev/", "proc/", "sys/", "run/", "tmp/", "boot/", "var/cache/apt/", "var/cache/debconf/", "var/cache/ldconfig/",
	"var/lib/apt/", "var/log/",
	"usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/i18n/", "usr/share/lintian/", "usr/share/bash-completion/",
	"etc/resolv.conf", "etc/hostname", "etc/machine-id", "var/lib/dbus/machine-id", "etc/apt/", "var/lib/dpkg/status-old",
	"var/lib/dpkg/available-old",
}

// isTrimmed says whether an entry is left out.
func isTrimmed(name string, dir bool) bool {
	for _, t := range trimmed {
		if !strings.HasSuffix(t, "/") {
			if name == t {
				return true
			}
		} else if strings.HasPrefix(name, t) {
			// Programs expect their directories below /var/log and /run.
			return !dir || !strings.HasPrefix(t, "var/log/")
		}
	}
	return strings.HasPrefix(name, "usr/share/doc/") && !dir && path.Base(name) != "copyright"
}

// entry is what counts for two layers having the same at a path; time stamps don't.
type entry struct {
	kind     byte
	mode     int64
	uid, gid int
	link     string
	sum      [sha256.Size]byte
}

// tree is the contents of an archive by clean relative path.
type tree map[string]entry

func cleanName(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// walk calls f for each entry of an archive that belongs into a layer.
func walk(tarball string, f func(name string, h *tar.Header, r io.Reader) error) error {
	file, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", tarball, err)
		}
		name := cleanName(h.Name)
		if name == "" || isTrimmed(name, h.Typeflag == tar.TypeDir) {
			continue
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = cleanName(h.Linkname)
		}
		if err := f(name, h, r); err != nil {
			return err
		}
	}
}

func entryOf(h *tar.Header, r io.Reader) (entry, error) {
	e := entry{kind: h.Typeflag, mode: h.Mode, uid: h.Uid, gid: h.Gid, link: h.Linkname}
	s := sha256.New()
	if _, err := io.Copy(s, r); err != nil {
		return e, err
	}
	for _, k := range sortedKeys(h.PAXRecords) {
		if strings.HasPrefix(k, "SCHILY.xattr.") {
			fmt.Fprintf(s, "%s=%s", k, h.PAXRecords[k])
		}
	}
	s.Sum(e.sum[:0])
	return e, nil
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func readTree(tarball string) (tree, error) {
	t := tree{}
	err := walk(tarball, func(name string, h *tar.Header, r io.Reader) error {
		e, err := entryOf(h, r)
		t[name] = e
		return err
	})
	return t, err
}

// layerWriter writes a compressed layer with fixed time stamps.
type layerWriter struct {
	f *os.File
	z *gzip.Writer
	t *tar.Writer
}

func newLayer(file string) (*layerWriter, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed+1)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &layerWriter{f, z, tar.NewWriter(z)}, nil
}

func (w *layerWriter) close() error { return errors.Join(w.t.Close(), w.z.Close(), w.f.Close()) }

func (w *layerWriter) add(name string, h *tar.Header, r io.Reader) error {
	c := *h
	c.Name, c.Uname, c.Gname, c.Format = name, "", "", tar.FormatPAX
	c.AccessTime, c.ChangeTime, c.ModTime = time.Time{}, time.Time{}, time.Unix(epoch, 0)
	if h.Typeflag == tar.TypeDir {
		c.Name += "/"
	}
	if err := w.t.WriteHeader(&c); err != nil {
		return err
	}
	_, err := io.Copy(w.t, r)
	return err
}

// writeDelta writes what tarball has beyond base, and whiteouts for what base
// has and tarball has not. A nil base is empty.
func writeDelta(base tree, tarball, file string) (err error) {
	have, err := readTree(tarball)
	if err != nil {
		return err
	}
	w, err := newLayer(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	err = walk(tarball, func(name string, h *tar.Header, r io.Reader) error {
		if old, ok := base[name]; ok && old == have[name] && !linkChanged(base, have, h) {
			return nil
		}
		return w.add(name, h, r)
	})
	if err != nil {
		return err
	}
	for _, name := range sortedKeys(base) {
		_, there := have[name]
		_, parent := have[path.Dir(name)]
		if there || !parent && path.Dir(name) != "." { // the parent's whiteout covers it
			continue
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}
		if err := w.add(path.Join(path.Dir(name), ".wh."+path.Base(name)), h, strings.NewReader("")); err != nil {
			return err
		}
	}
	return nil
}

// linkChanged says whether a hard link must be written since its target is.
func linkChanged(base, have tree, h *tar.Header) bool {
	return h.Typeflag == tar.TypeLink && base[h.Linkname] != have[h.Linkname]
}

// writeFiles writes a layer of a recipe's own files.
func writeFiles(r *Recipe, file string) (err error) {
	w, err := newLayer(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	made := map[string]bool{"/": true}
	for _, p := range r.filePaths() {
		if err := w.parents(path.Dir(p), made); err != nil {
			return err
		}
		f, err := os.Open(r.path(r.Files[p].From))
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			err = w.add(cleanName(p), &tar.Header{Typeflag: tar.TypeReg, Mode: r.Files[p].mode(), Size: info.Size()}, f)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *layerWriter) parents(dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := w.parents(path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	return w.add(cleanName(dir), &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}, strings.NewReader(""))
}
