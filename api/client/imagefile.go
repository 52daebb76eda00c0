package client

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"github.com/onpath/onpath"
)

var (
	notInRepo = regexp.MustCompile(`[^a-z0-9]+`)
	archive   = regexp.MustCompile(`\.(tar|oci|tgz)$|\.tar\.(gz|zst)$`)
)

// repoName makes a repository's name of a file's.
func repoName(path string) string {
	base := archive.ReplaceAllString(strings.ToLower(filepath.Base(filepath.Clean(path))), "")
	if base = strings.Trim(notInRepo.ReplaceAllString(base, "-"), "-"); base == "" {
		return "image"
	}
	return base
}

// openImage opens the one image for nodes in a file or folder.
func openImage(path string) (image v1.Image, done func(), err error) {
	done = func() {}
	info, err := os.Stat(path)
	if err != nil {
		e := onpath.Errorf(onpath.CodeNotFound, "image %s: %w", path, err)
		e.Remedy = "build it first, or correct the path in container.image"
		return nil, done, e
	}
	if info.IsDir() {
		image, err = fromLayout(path)
	} else {
		image, done, err = fromArchive(path)
	}
	if err == nil {
		return image, done, nil
	}
	done()
	e := onpath.Errorf(onpath.CodeInvalid, "image %s: %w", path, err)
	var w *wrong
	if errors.As(err, &w) {
		e.Remedy = w.remedy
	}
	return nil, func() {}, e
}

// wrong is a fault of an image's file, and what to do about it.
type wrong struct{ what, remedy string }

func (w *wrong) Error() string { return w.what }

const asLayout = "give an OCI layout, or an archive of one or of docker save"

func fromLayout(dir string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &wrong{"the folder has no index.json", asLayout}
	} else if err != nil {
		return nil, &wrong{err.Error(), asLayout}
	}
	return pick(index)
}

func fromArchive(path string) (image v1.Image, done func(), err error) {
	done = func() {}
	open := func() (io.ReadCloser, error) { return plain(path) }
	docker, err := isDocker(open)
	if err != nil {
		return nil, done, err
	}
	if docker {
		image, err = fromDocker(open)
		return image, done, err
	}
	dir, err := unpack(open)
	if err != nil {
		return nil, done, err
	}
	image, err = fromLayout(dir)
	return image, func() { _ = os.RemoveAll(dir) }, err
}

// plain opens a file without its compression.
func plain(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := bufio.NewReader(f)
	head, _ := r.Peek(6)
	out := struct {
		io.Reader
		io.Closer
	}{r, f}
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		out.Reader, err = gzip.NewReader(r)
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1)); err == nil {
			out.Reader = z.IOReadCloser() // which has nothing to close when it decodes in the reader's turn
		}
	case bytes.HasPrefix(head, []byte("\xfd7zXZ")):
		err = &wrong{"it is compressed by xz", "decompress it: xz -d " + path}
	case bytes.HasPrefix(head, []byte("BZh")):
		err = &wrong{"it is compressed by bzip2", "decompress it: bzip2 -d " + path}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return out, nil
}

// isDocker reports whether an archive is docker's, by the file that only these have; an
// OCI layout in the same archive overrules that.
func isDocker(open tarball.Opener) (docker bool, err error) {
	layout := false
	err = eachFile(open, func(name string, _ *tar.Reader) error {
		layout = layout || name == "oci-layout" || name == "index.json"
		docker = docker || name == "manifest.json"
		return nil
	})
	if err == nil && !docker && !layout {
		err = &wrong{"the archive has neither an index.json nor a manifest.json, so it is of no image",
			asLayout + "; docker export writes only files, and docker save an image"}
	}
	return docker && !layout, err
}

// eachFile calls f for each regular file of an archive.
func eachFile(open tarball.Opener, f func(name string, r *tar.Reader) error) error {
	in, err := open()
	if err != nil {
		return err
	}
	defer in.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return &wrong{"the archive breaks off: " + err.Error(), "copy or write it anew"}
		case err != nil:
			return &wrong{"it is not a tar archive: " + err.Error(), asLayout}
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := f(filepath.Clean(h.Name), r); err != nil {
			return err
		}
	}
}

// unpack extracts an archive into a temporary folder.
func unpack(open tarball.Opener) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "onpath-image-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	return dir, eachFile(open, func(name string, r *tar.Reader) error {
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		out, err := root.Create(name)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		return errors.Join(err, out.Close())
	})
}

func fromDocker(open tarball.Opener) (v1.Image, error) {
	list, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, fmt.Errorf("its manifest.json cannot be read: %w", err)
	}
	var c choice
	for _, one := range list {
		if len(list) > 1 { // only tags tell them apart, so which it is does not matter any more
			c.fits = append(c.fits, offer{name: cmp.Or(strings.Join(one.RepoTags, " "), one.Config)})
			continue
		}
		var tag *name.Tag
		image, err := tarball.Image(open, tag)
		if err != nil {
			return nil, err
		}
		if err := c.add(image, strings.Join(one.RepoTags, " "), nil); err != nil {
			return nil, err
		}
	}
	return c.best()
}

// pick finds the one image for nodes below an index.
func pick(index v1.ImageIndex) (v1.Image, error) {
	var c choice
	if err := c.look(index, "", 0); err != nil {
		return nil, err
	}
	return c.best()
}

// choice is what was found in a file.
type choice struct {
	fits   []offer
	others []string // what else there is
}

// offer is an image that nodes can run.
type offer struct {
	image   v1.Image
	digest  string
	name    string // empty: it has none
	variant string // of the architecture: v3
}

// nested is how deep indexes may lie in each other.
const nested = 8

// What names an image in an index, and what marks the record of a build beside it.
const (
	fullName  = "io.containerd.image.name"
	shortName = "org.opencontainers.image.ref.name"
	record    = "vnd.docker.reference.type"
)

// look collects what an index has. What is for others need not be there.
func (c *choice) look(index v1.ImageIndex, called string, depth int) error {
	m, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("an index cannot be read: %w", err)
	}
	for _, d := range m.Manifests {
		called := cmp.Or(d.Annotations[fullName], d.Annotations[shortName], called)
		switch {
		case d.Annotations[record] != "" || d.Platform != nil && d.Platform.Architecture == "unknown":
		case d.Platform != nil && !fits(*d.Platform):
			c.others = append(c.others, "one for "+d.Platform.String())
		case d.MediaType.IsIndex() && depth < nested:
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return fmt.Errorf("index %s cannot be read: %w", d.Digest, err)
			}
			if err := c.look(inner, called, depth+1); err != nil {
				return err
			}
		case d.MediaType.IsImage():
			image, err := index.Image(d.Digest)
			if err == nil {
				err = c.add(image, called, d.Platform)
			}
			if err != nil {
				return fmt.Errorf("image %s cannot be read: %w", d.Digest, err)
			}
		default:
			c.others = append(c.others, "a "+string(d.MediaType))
		}
	}
	return nil
}

// add looks into an image's configuration, which says what it runs on.
func (c *choice) add(image v1.Image, called string, told *v1.Platform) error {
	m, err := image.Manifest()
	if err != nil {
		return err
	}
	if !m.Config.MediaType.IsConfig() {
		c.others = append(c.others, "an artifact of type "+cmp.Or(m.ArtifactType, string(m.Config.MediaType)))
		return nil
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	p := v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}
	if told != nil {
		p.OS, p.Architecture, p.Variant = cmp.Or(p.OS, told.OS), cmp.Or(p.Architecture, told.Architecture), cmp.Or(p.Variant, told.Variant)
	}
	if !fits(p) {
		c.others = append(c.others, "one for "+p.String())
		return nil
	}
	for _, o := range c.fits {
		if o.digest == digest.String() {
			return nil // the same under another name
		}
	}
	c.fits = append(c.fits, offer{image, digest.String(), called, p.Variant})
	return nil
}

// fits reports whether nodes run what is for p; what is not said may be anything.
func fits(p v1.Platform) bool {
	return (p.OS == "" || p.OS == "linux") && (p.Architecture == "" || p.Architecture == runtime.GOARCH)
}

// best is the image that runs on the most machines: the one without a variant of the
// architecture, or of the lowest. Two of these, or of two names, are for the user to choose from.
func (c *choice) best() (v1.Image, error) {
	platform := "linux/" + runtime.GOARCH
	slices.SortStableFunc(c.fits, func(a, b offer) int { return cmp.Compare(a.level(), b.level()) })
	if len(c.fits) == 0 && len(c.others) == 0 {
		return nil, &wrong{"it holds no image", asLayout}
	}
	if len(c.fits) == 0 {
		return nil, &wrong{"it holds no image for " + platform + ", but " + strings.Join(slices.Compact(c.others), ", "),
			"write one for that platform into it, such as by docker build --platform " + platform}
	}
	var names []string
	for _, o := range c.fits {
		if first := c.fits[0]; o.name != first.name || o.level() == first.level() {
			names = append(names, cmp.Or(o.name, o.digest))
		}
	}
	if len(names) > 1 {
		return nil, &wrong{fmt.Sprintf("it holds %d images for %s: %s", len(names), platform, strings.Join(names, ", ")),
			"give each image a file of its own, such as by docker save NAME -o FILE or skopeo copy oci-archive:FILE:NAME oci-archive:OTHER"}
	}
	return c.fits[0].image, nil
}

// level is the number of a variant, such as 3 of amd64's v3; 0: none.
func (o offer) level() int {
	n, _ := strconv.Atoi(strings.TrimPrefix(o.variant, "v"))
	return n
}
