package registry

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// Images are removed when for imageKeep no function named them, nor one that an
// unconfirmed change or a rollback may bring back: an apply pushes the image before it writes
// the function, and who deleted a function may want it again.
const (
	sweepEvery = time.Hour
	imageKeep  = 25 * time.Hour
)

// manifestPath is the path of an image that is kept here.
func manifestPath(image string) (path string, ok bool) {
	image, ok = strings.CutPrefix(image, onpath.ImageHost+"/")
	repo, digest, byDigest := strings.Cut(image, "@")
	repo, tag, tagged := strings.Cut(repo, ":")
	last := "latest"
	switch {
	case byDigest:
		last = digest
	case tagged:
		last = tag
	}
	return repositoryURL{repo: repo}.to(kindManifest, last), ok
}

// sweep removes manifests that are old, neither used nor part of one that stays,
// and then old blobs that no manifest names. Used ones become new, so that age
// counts from the last use. Nobody waits for it but who pushes a manifest.
func (im *images) sweep(used []string) error {
	im.writing.Lock()
	defer im.writing.Unlock()
	if im.unread != nil {
		if err := im.reload(); err != nil {
			return err
		}
	}
	old := im.clock().Add(-imageKeep)
	manifests, err := im.sweepManifests(used, old)
	if err == nil && manifests > 0 {
		err = im.reload()
	}
	if err != nil {
		return err
	}
	blobs, err := im.sweepBlobs(old)
	im.recount()
	if manifests+blobs > 0 {
		im.log.Info("unused images removed", "manifests", manifests, "blobs", blobs)
	}
	return err
}

// reload is load, and fails if a manifest cannot be read: what that names would
// seem to be unused. It needs writing.
func (im *images) reload() error {
	if err := im.load(); err != nil {
		return err
	}
	return im.unread
}

func (im *images) sweepManifests(used []string, old time.Time) (removed int, err error) {
	files, err := os.ReadDir(im.manifestDir)
	if err != nil {
		return 0, err
	}
	im.mu.Lock() // what is looked at meanwhile would become new
	defer im.mu.Unlock()
	im.expire()
	keep := map[string]bool{}
	for _, image := range used {
		if path, ok := manifestPath(image); ok && im.manifests[path] != nil {
			im.keep(im.manifests[path], keep)
		}
	}
	now, young := im.clock(), map[string]bool{} // files
	for _, m := range im.manifests {
		file := im.manifestFile(m)
		if keep[m.key()] {
			_ = os.Chtimes(file, time.Time{}, now)
		}
		young[filepath.Base(file)] = !olderThan(file, old)
	}
	for _, m := range im.manifests {
		if young[filepath.Base(im.manifestFile(m))] {
			im.keep(m, keep)
		}
	}
	stay := map[string]bool{}
	for _, m := range im.manifests {
		stay[filepath.Base(im.manifestFile(m))] = keep[m.key()]
	}
	for _, f := range files {
		if file := filepath.Join(im.manifestDir, f.Name()); !stay[f.Name()] && olderThan(file, old) && os.Remove(file) == nil {
			removed++
		}
	}
	return removed, nil
}

// key is the same for a manifest and its tags.
func (m *manifest) key() string { return m.part(m.digest) }

// keep marks a manifest, its tags and those of its platforms. It needs mu.
func (im *images) keep(m *manifest, marked map[string]bool) {
	if marked[m.key()] {
		return
	}
	marked[m.key()] = true
	for _, digest := range m.parts {
		if part := im.manifests[m.part(digest)]; part != nil {
			im.keep(part, marked)
		}
	}
}

func (im *images) sweepBlobs(old time.Time) (removed int, err error) {
	files, err := os.ReadDir(im.blobDir)
	if err != nil {
		return 0, err
	}
	named := map[string]bool{}
	for _, m := range im.manifests {
		for _, digest := range m.blobs {
			named[digest] = true
		}
	}
	for _, f := range files {
		if !named["sha256:"+f.Name()] && im.removeOld(filepath.Join(im.blobDir, f.Name()), old) {
			removed++
		}
	}
	return removed, nil
}

// removeOld removes a file, unless a push has just seen it or brought it again.
func (im *images) removeOld(file string, old time.Time) bool {
	im.mu.Lock()
	defer im.mu.Unlock()
	return olderThan(file, old) && os.Remove(file) == nil
}

func olderThan(file string, t time.Time) bool {
	info, err := os.Stat(file)
	return err == nil && info.ModTime().Before(t)
}
