package api

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// Images that no function and no running instance's function names are removed
// after imageKeep: an apply pushes the image before it writes the function, and
// an unconfirmed change may come back.
const (
	sweepEvery = time.Hour
	imageKeep  = 25 * time.Hour
)

func (s *Server) sweepImages(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("unused images could not be removed", "error", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) sweep(ctx context.Context) error {
	list, _, err := s.o.Store.List(ctx, onpath.KindFunction, "")
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, o := range list {
		if c := o.(*onpath.Function).Spec.Container; c != nil {
			if _, digest, ok := strings.Cut(c.Image, "@"); ok {
				used[digest] = true
			}
		}
	}
	return s.images.sweep(used, s.o.Clock().Add(-imageKeep))
}

// sweep removes manifests last written before old that are neither used nor part
// of one that stays, and then blobs that no manifest names.
func (im *images) sweep(used map[string]bool, old time.Time) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	files, err := os.ReadDir(im.manifestDir())
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, f := range files {
		path, _, ok := parseManifestFile(f.Name())
		if ok && (used[filepath.Base(path)] || !olderThan(f, old)) {
			im.names(f.Name(), named)
		}
	}
	removed := 0
	for _, f := range files {
		path, _, _ := parseManifestFile(f.Name())
		if digest := filepath.Base(path); olderThan(f, old) && !used[digest] && !named[digest] {
			removed++
			_ = os.Remove(filepath.Join(im.manifestDir(), f.Name()))
		} else if used[digest] || named[digest] {
			im.names(f.Name(), named)
		}
	}
	blobFiles, err := os.ReadDir(im.blobDir())
	if err != nil {
		return err
	}
	for _, f := range blobFiles {
		if !named["sha256:"+f.Name()] && olderThan(f, old) {
			removed++
			_ = os.Remove(filepath.Join(im.blobDir(), f.Name()))
		}
	}
	if removed == 0 {
		return nil
	}
	im.log.Info("unused images removed", "files", removed)
	return im.load()
}

// names adds the digests that a manifest names.
func (im *images) names(file string, to map[string]bool) {
	data, err := os.ReadFile(filepath.Join(im.manifestDir(), file))
	if err != nil {
		return
	}
	type descriptor struct {
		Digest string `json:"digest"`
	}
	var m struct {
		Config    descriptor   `json:"config"`
		Layers    []descriptor `json:"layers"`
		Manifests []descriptor `json:"manifests"`
	}
	if json.Unmarshal(data, &m) != nil {
		return
	}
	for _, d := range append(append(m.Layers, m.Manifests...), m.Config) {
		to[d.Digest] = true
	}
}

func olderThan(f os.DirEntry, t time.Time) bool {
	info, err := f.Info()
	return err == nil && info.ModTime().Before(t)
}
