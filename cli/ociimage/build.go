package ociimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// format changes whenever the same inputs would make another image.
const format = "2"

// Result is an image as built, or as found in the cache.
type Result struct {
	Name   string
	Layout string        // the OCI layout's directory in the cache
	Path   string        // a symbolic link to it in the output directory, if one was given
	Digest string        // of the manifest
	Size   int64         // bytes of its compressed layers, shared ones included
	Cached bool          // nothing had to be done
	Took   time.Duration // to build
}

// CacheDir is where images are kept: $ONPATH_CACHE/images, or
// $XDG_CACHE_HOME/onpath/images, or ~/.cache/onpath/images.
func CacheDir() (string, error) {
	if dir := os.Getenv("ONPATH_CACHE"); dir != "" {
		return filepath.Abs(filepath.Join(dir, "images"))
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the image cache: %w (set ONPATH_CACHE)", err)
	}
	return filepath.Join(dir, "onpath", "images"), nil
}

// Build makes the image of the recipe in recipeDir, or finds it in the cache,
// and links it as outDir/NAME; outDir may be empty. Progress is told in words.
func Build(ctx context.Context, recipeDir, outDir string, progress func(string)) (Result, error) {
	all, err := BuildAll(ctx, []string{recipeDir}, outDir, progress)
	if err != nil {
		return Result{}, err
	}
	return all[0], nil
}

// BuildAll makes several images, two at a time; what they share is made once.
func BuildAll(ctx context.Context, recipeDirs []string, outDir string, progress func(string)) ([]Result, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	b := &builder{cache: cache, progress: progress}
	if progress == nil {
		b.progress = func(string) {}
	}
	for _, d := range []string{"layers", "layouts", "blobs", "tmp", "locks"} {
		if err := os.MkdirAll(filepath.Join(cache, d), 0o755); err != nil {
			return nil, fmt.Errorf("image cache: %w", err)
		}
	}
	b.clearTmp()
	results := make([]Result, len(recipeDirs))
	errs := make([]error, len(recipeDirs))
	slots := make(chan struct{}, 2)
	var wg sync.WaitGroup
	for i, dir := range recipeDirs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i], errs[i] = b.build(ctx, dir, outDir)
		})
	}
	wg.Wait()
	if ctx.Err() != nil { // what each of them says of being ended is no help
		return nil, fmt.Errorf("images that are ready are kept, the others are not made: %w", ctx.Err())
	}
	return results, errors.Join(errs...)
}

type builder struct {
	cache    string
	progress func(string)
	mu       sync.Mutex // progress is told by several builds
}

func (b *builder) path(elem ...string) string {
	return filepath.Join(append([]string{b.cache}, elem...)...)
}

func (b *builder) teller(name string) func(string) {
	return func(s string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.progress(name + ": " + s)
	}
}

func (b *builder) build(ctx context.Context, dir, outDir string) (Result, error) {
	start := time.Now()
	r, err := ReadRecipe(dir)
	if err != nil {
		return Result{}, err
	}
	tell := b.teller(r.Name)
	res, err := b.image(ctx, r, tell)
	if err != nil {
		return Result{}, fmt.Errorf("image %s: %w", r.Name, err)
	}
	if outDir != "" {
		if res.Path, err = link(res.Layout, outDir, r.Name); err != nil {
			return Result{}, fmt.Errorf("image %s: %w", r.Name, err)
		}
	}
	res.Took = time.Since(start)
	if res.Cached {
		tell(fmt.Sprintf("in the cache, %s", size(res.Size)))
	} else {
		tell(fmt.Sprintf("ready, %s, took %s", size(res.Size), res.Took.Round(100*time.Millisecond)))
	}
	return res, nil
}

// stack is a recipe with those it is based on, the lowest first.
func stack(r *Recipe) ([]*Recipe, error) {
	out := []*Recipe{r}
	for r.Base != "" {
		base, err := ReadRecipe(r.path(r.Base))
		if err != nil {
			return nil, err
		}
		if len(out) > 8 {
			return nil, onpath.Errorf(onpath.CodeInvalid, "its bases lead back to itself; leave one of them out")
		}
		r, out = base, append([]*Recipe{base}, out...)
	}
	return out, nil
}

// image builds what is not in the cache.
func (b *builder) image(ctx context.Context, r *Recipe, tell func(string)) (Result, error) {
	recipes, err := stack(r)
	if err != nil {
		return Result{}, err
	}
	var layers []string
	var below *rootfs
	for i, one := range recipes {
		if len(one.Packages) > 0 {
			fs, err := b.packages(ctx, one.packages(), below, i < len(recipes)-1, tell)
			if err != nil {
				return Result{}, err
			}
			layers, below = append(layers, fs.layer), fs
		}
		if len(one.Files) > 0 {
			file, err := b.files(ctx, one)
			if err != nil {
				return Result{}, err
			}
			layers = append(layers, file)
		}
	}
	return b.layout(ctx, r, layers)
}

// rootfs is a root file system made of packages, as a layer over others.
type rootfs struct {
	key   string
	layer string // compressed, what it adds
	tar   string // the whole; only kept for those that others build on
}

// packages makes the layer that adds pkgs to what is below; keep says that others
// are built upon it.
func (b *builder) packages(ctx context.Context, pkgs []pkg, below *rootfs, keep bool, tell func(string)) (*rootfs, error) {
	r, err := resolve(ctx, b.cache, pkgs, tell)
	if err != nil {
		return nil, err
	}
	parent := ""
	if below != nil {
		parent = below.key
	}
	key := hash(append([]string{format, runtime.GOARCH, r.apt.dist.codename, parent}, slices.Concat(r.Versions, r.Pinned)...)...)
	fs := &rootfs{key: key, layer: b.path("layers", key+".tar.gz"), tar: b.path("layers", key+".tar")}
	unlock, err := lock(ctx, b.path("locks", key), tell)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if exists(fs.layer) && (!keep || exists(fs.tar)) {
		return fs, nil
	}
	tmp, err := b.tmpDir()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	tell("needs " + strings.Join(r.Versions, ", "))
	tarball, layer := filepath.Join(tmp, "rootfs.tar"), filepath.Join(tmp, "layer.tar.gz")
	var base tree
	var from string
	if below != nil {
		from = below.tar
		if base, err = readTree(from); err != nil {
			return nil, err
		}
	}
	var names []string
	for _, p := range pkgs {
		names = append(names, p.name)
	}
	if err := bootstrap(ctx, r, names, from, tmp, tarball, tell); err != nil {
		return nil, err
	}
	tell("packing")
	if err := writeDelta(base, tarball, layer); err != nil {
		return nil, err
	}
	if keep {
		if err := os.Rename(tarball, fs.tar); err != nil {
			return nil, err
		}
	}
	return fs, os.Rename(layer, fs.layer)
}

// files makes the layer of a recipe's own files.
func (b *builder) files(ctx context.Context, r *Recipe) (string, error) {
	parts := []string{format}
	for _, p := range r.filePaths() {
		data, err := os.ReadFile(r.path(r.Files[p].From))
		if err != nil {
			return "", fmt.Errorf("file for %s: %w", p, err)
		}
		parts = append(parts, p, fmt.Sprint(r.Files[p].mode()), string(data))
	}
	file := b.path("layers", hash(parts...)+".tar.gz")
	if exists(file) {
		return file, nil
	}
	tmp, err := b.tmpDir()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	layer := filepath.Join(tmp, "layer.tar.gz")
	if err := writeFiles(r, layer); err != nil {
		return "", err
	}
	return file, os.Rename(layer, file)
}

// tmpDir makes a scratch directory that tells whose it is.
func (b *builder) tmpDir() (string, error) {
	return os.MkdirTemp(b.path("tmp"), fmt.Sprintf("%d-", os.Getpid()))
}

// clearTmp removes the scratch directories of processes that are no more.
func (b *builder) clearTmp() {
	old, _ := filepath.Glob(b.path("tmp", "*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(filepath.Base(dir), "-")
		if !exists("/proc/" + pid) {
			os.RemoveAll(dir)
		}
	}
}

// link points dir/name at target, in one step.
func link(target, dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if now, err := os.Readlink(path); err == nil && now == target {
		return path, nil
	}
	tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	os.Remove(tmp)
	if err := os.Symlink(target, tmp); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:", len(p))
		io.WriteString(h, p)
	}
	return hex.EncodeToString(h.Sum(nil))[:24]
}

func size(n int64) string { return onpath.Size(n).Rounded() }

// lock takes an exclusive lock on path, which ends with the process.
func lock(ctx context.Context, path string, tell func(string)) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("image cache: %w", err)
	}
	for told := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("image cache: lock %s: %w", path, err)
		}
		if !told {
			tell("waiting for a build of the same")
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
