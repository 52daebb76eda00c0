package ociimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// keptLayouts is how many builds of one image the cache keeps.
const keptLayouts = 3

// layout assembles the image as an OCI layout in the cache.
func (b *builder) layout(ctx context.Context, r *Recipe, layers []string) (Result, error) {
	parts := []string{format, string(r.raw)}
	for _, l := range layers {
		parts = append(parts, filepath.Base(l))
	}
	res := Result{Name: r.Name, Layout: b.path("layouts", r.Name+"-"+hash(parts...))}
	unlock, err := lock(ctx, b.path("locks", filepath.Base(res.Layout)), b.teller(r.Name))
	if err != nil {
		return res, err
	}
	defer unlock()
	if exists(res.Layout) {
		res.Cached = true
		return res, describe(&res)
	}
	img, err := assemble(r, layers)
	if err != nil {
		return res, err
	}
	tmp, err := b.tmpDir()
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(tmp)
	if err := writeLayout(img, r.Name, tmp); err != nil {
		return res, err
	}
	if err := b.shareBlobs(tmp); err != nil {
		return res, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return res, err
	}
	if err := os.Rename(tmp, res.Layout); err != nil {
		return res, err
	}
	b.prune(r.Name)
	return res, describe(&res)
}

func assemble(r *Recipe, files []string) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, f := range files {
		l, err := tarball.LayerFromFile(f, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", f, err)
		}
		add := mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: time.Unix(epoch, 0).UTC()}}}
		if img, err = mutate.Append(img, add); err != nil {
			return nil, err
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.Architecture, c.OS, c.Created = runtime.GOARCH, "linux", v1.Time{Time: time.Unix(epoch, 0).UTC()}
	c.Config.Entrypoint, c.Config.Cmd, c.Config.User, c.Config.WorkingDir = r.Entrypoint, r.Command, r.User, r.WorkingDir
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, k := range sortedKeys(r.Env) {
		c.Config.Env = append(c.Config.Env, k+"="+r.Env[k])
	}
	return mutate.ConfigFile(img, c)
}

func writeLayout(img v1.Image, name, dir string) error {
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return p.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name}))
}

// describe fills in digest and size from the layout.
func describe(res *Result) error {
	p, err := layout.FromPath(res.Layout)
	if err != nil {
		return err
	}
	index, err := p.ImageIndex()
	if err != nil {
		return err
	}
	im, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(im.Manifests) != 1 {
		return fmt.Errorf("%s holds %d images", res.Layout, len(im.Manifests))
	}
	res.Digest = im.Manifests[0].Digest.String()
	img, err := index.Image(im.Manifests[0].Digest)
	if err != nil {
		return err
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	for _, l := range m.Layers {
		res.Size += l.Size
	}
	return nil
}

// shareBlobs makes equal blobs of different layouts one file.
func (b *builder) shareBlobs(dir string) error {
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil {
		return err
	}
	for _, blob := range blobs {
		shared := b.path("blobs", filepath.Base(blob))
		err := os.Link(blob, shared)
		if errors.Is(err, os.ErrExist) {
			tmp := blob + ".tmp"
			if err = os.Link(shared, tmp); err == nil {
				err = os.Rename(tmp, blob)
			}
		}
		if err != nil {
			return fmt.Errorf("share layers: %w", err)
		}
	}
	return nil
}

// prune removes older builds of an image, and what only they used.
func (b *builder) prune(name string) {
	all, _ := filepath.Glob(b.path("layouts", name+"-*"))
	age := func(f string) time.Time {
		info, err := os.Stat(f)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	sort.Slice(all, func(i, j int) bool { return age(all[i]).After(age(all[j])) })
	for i, dir := range all {
		if i >= keptLayouts && len(filepath.Base(dir)) == len(name)+1+24 {
			os.RemoveAll(dir)
		}
	}
	blobs, _ := filepath.Glob(b.path("blobs", "*"))
	for _, f := range blobs {
		if links(f) == 1 && time.Since(age(f)) > time.Hour {
			os.Remove(f)
		}
	}
}

// links is the number of names that a file has.
func links(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return uint64(st.Nlink)
}
