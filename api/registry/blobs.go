package registry

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// holding is a blob that is a tenant's: a manifest of its names it, or it was
// pushed there not long ago. A blob that several tenants have is one file, and who
// has not pushed it does not see that it is there.
type holding struct {
	size int64
	seen time.Time // pushed or looked at; zero: not since the start
}

func (im *images) blobFile(digest string) string {
	return filepath.Join(im.blobDir, strings.TrimPrefix(digest, "sha256:"))
}

// blob is the size of a blob that p may see. It needs mu.
func (im *images) blob(p repositoryURL, digest string) (size int64, ok bool) {
	h, own := im.owned[p.tenant][digest]
	if p.user && !own {
		return 0, false
	}
	size, ok = im.touch(im.blobFile(digest))
	if own && ok {
		h.seen = im.clock()
		im.owned[p.tenant][digest] = h
	}
	return size, ok
}

// touchAfter is how old a file is before a look at it makes it new.
const touchAfter = time.Hour

// touch keeps the sweep from taking a file from under a push that has seen it. It
// needs mu.
func (im *images) touch(file string) (size int64, ok bool) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, false
	}
	if now := im.clock(); now.Sub(info.ModTime()) > touchAfter {
		_ = os.Chtimes(file, time.Time{}, now)
	}
	return info.Size(), true
}

// own notes that a blob is a tenant's. It needs mu.
func (im *images) own(tenant, digest string, h holding) {
	if im.owned[tenant] == nil {
		im.owned[tenant] = map[string]holding{}
	}
	im.owned[tenant][digest] = h
}

// recount finds out what is whose: what manifests name, and what was pushed
// and is not old yet. It needs writing.
func (im *images) recount() {
	im.mu.Lock()
	defer im.mu.Unlock()
	before := im.owned
	im.owned = map[string]map[string]holding{}
	sizes := map[string]int64{} // -1: it is not there
	size := func(digest string) int64 {
		n, known := sizes[digest]
		if !known {
			n = -1
			if info, err := os.Stat(im.blobFile(digest)); err == nil {
				n = info.Size()
			}
			sizes[digest] = n
		}
		return n
	}
	for _, m := range im.manifests {
		for _, digest := range m.blobs {
			if n := size(digest); n >= 0 {
				im.own(m.tenant, digest, holding{n, before[m.tenant][digest].seen})
			}
		}
	}
	old := im.clock().Add(-imageKeep)
	for tenant, blobs := range before {
		for digest, h := range blobs {
			if h.seen.After(old) && size(digest) >= 0 {
				im.own(tenant, digest, h)
			}
		}
	}
}

func (im *images) serveBlob(w http.ResponseWriter, r *http.Request, p repositoryURL) error {
	if !reads(r.Method) {
		return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "blobs that nothing needs go by themselves")
	}
	im.mu.Lock()
	_, ok := im.blob(p, p.last)
	im.mu.Unlock()
	var f *os.File
	err := fs.ErrNotExist
	if ok {
		f, err = os.Open(im.blobFile(p.last)) // which stays readable when it is removed
	}
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(http.StatusNotFound, "BLOB_UNKNOWN", "there is no blob %s in %s", p.last, p.repo)
	} else if err != nil {
		return err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Docker-Content-Digest", p.last)
	w.Header().Set("ETag", `"`+p.last+`"`)
	http.ServeContent(w, r, "", time.Time{}, &whileAsked{f, r.Context()})
	return nil
}

// whileAsked is a file that ends with the request: that of who was revoked, say.
type whileAsked struct {
	io.ReadSeeker
	ctx context.Context
}

func (f *whileAsked) Read(b []byte) (int, error) {
	if err := context.Cause(f.ctx); err != nil {
		return 0, err
	}
	return f.ReadSeeker.Read(b)
}
