package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// upload is a blob of which not all has come yet: a file named by its id.
type upload struct {
	repositoryURL
	id, file string
	sum      hash.Hash // of what is in the file; who is busy has it

	// Under images.mu.
	size int64
	busy bool // with a request
	used time.Time
}

// uploadKeep is how long an upload waits for its next request.
const uploadKeep = time.Hour

// begin makes an upload, which is busy.
func (im *images) begin(p repositoryURL) (*upload, error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.expire()
	open := 0
	for _, u := range im.uploads {
		if u.tenant == p.tenant {
			open++
		}
	}
	if p.user && open >= maxUploads {
		return nil, refuse(http.StatusTooManyRequests, "TOOMANYREQUESTS",
			"%s has %d open uploads, which is the most: finish or delete one, or wait until the oldest is forgotten after %s", p.tenant,
			open, onpath.Duration(uploadKeep))
	}
	id := rand.Text()
	u := &upload{repositoryURL: p, id: id, file: filepath.Join(im.uploadDir, id), sum: sha256.New(), busy: true, used: im.clock()}
	if err := os.WriteFile(u.file, nil, 0o600); err != nil {
		return nil, unwritten(im.dir, err)
	}
	im.uploads[id] = u
	return u, nil
}

// resume finds an upload, which is busy from then on.
func (im *images) resume(p repositoryURL) (*upload, error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.expire()
	u := im.uploads[p.last]
	switch {
	case u == nil || u.repo != p.repo:
		return nil, refuse(http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "there is no upload %s to %s, or it was forgotten", p.last, p.repo)
	case u.busy:
		return nil, refuse(http.StatusConflict, "BLOB_UPLOAD_INVALID", "another request is busy with upload %s", u.id)
	}
	u.busy = true
	return u, nil
}

// release lets the next request have an upload.
func (im *images) release(u *upload) {
	im.mu.Lock()
	defer im.mu.Unlock()
	u.busy, u.used = false, im.clock()
}

// drop forgets an upload.
func (im *images) drop(u *upload) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.forget(u)
}

// forget needs mu.
func (im *images) forget(u *upload) {
	if im.uploads[u.id] == u {
		delete(im.uploads, u.id)
		_ = os.Remove(u.file)
	}
}

// expire forgets uploads that nobody goes on with. It needs mu.
func (im *images) expire() {
	old := im.clock().Add(-uploadKeep)
	for _, u := range im.uploads {
		if !u.busy && u.used.Before(old) {
			im.forget(u)
		}
	}
}

// unwritten is the error of a file that could not be written in the registry's folder.
func unwritten(dir string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return full(dir)
	}
	return onpath.Errorf(onpath.CodeUnavailable, "keep the image: %w", err)
}

func (im *images) serveUpload(w http.ResponseWriter, r *http.Request, p repositoryURL) error {
	if (r.Method == http.MethodPost) != (p.last == "") {
		return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "%s is not supported for %s", r.Method, r.URL.Path)
	}
	digest := r.URL.Query().Get("digest")
	if (r.Method == http.MethodPut || digest != "") && !digestRef.MatchString(digest) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "digest=%s is no sha256 digest", digest)
	}
	find := im.resume
	if r.Method == http.MethodPost {
		find = im.begin
	}
	u, err := find(p)
	if err != nil {
		return err
	}
	defer im.release(u)
	switch {
	case r.Method == http.MethodPut, r.Method == http.MethodPost && digest != "":
		if r.Method == http.MethodPost {
			defer im.drop(u) // nobody knows its name
		}
		return im.finish(w, r, u, digest)
	case r.Method == http.MethodPatch:
		if err := im.receive(w, r, u, maxBlob); err != nil {
			return err
		}
		return im.progress(w, u, http.StatusAccepted)
	case r.Method == http.MethodPost: // a mount from elsewhere, too, begins an upload
		return im.progress(w, u, http.StatusAccepted)
	case reads(r.Method):
		return im.progress(w, u, http.StatusNoContent)
	case r.Method == http.MethodDelete:
		im.drop(u)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "%s is not supported for uploads", r.Method)
}

// describe says how far an upload is.
func (u *upload) describe(h http.Header) {
	h.Set("Location", u.to(kindUpload, u.id))
	h.Set("Docker-Upload-UUID", u.id)
	h.Set("Range", fmt.Sprintf("0-%d", max(u.size-1, 0)))
}

func (im *images) progress(w http.ResponseWriter, u *upload, status int) error {
	u.describe(w.Header())
	w.WriteHeader(status)
	return nil
}

// checkEvery is how many bytes may come between two looks at the disk.
const checkEvery = 4 << 20

// receive appends a body to an upload of at most limit bytes. If the body breaks
// off, what has come is kept for the caller to go on; else the upload is dropped
// with an error.
func (im *images) receive(w http.ResponseWriter, r *http.Request, u *upload, limit int64) error {
	if h := r.Header.Get("Content-Range"); h != "" && !continues(h, u.size) {
		u.describe(w.Header())
		return refuse(http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID",
			"the upload has %d bytes, which %s does not continue", u.size, h)
	}
	cut, err := im.take(r, u, limit)
	if err != nil && !cut {
		im.drop(u)
	}
	return err
}

// continues reports whether a Content-Range (begin-end) goes on after size bytes.
func continues(contentRange string, size int64) bool {
	begin, end, ok := strings.Cut(contentRange, "-")
	a, err := strconv.ParseInt(begin, 10, 64)
	z, err2 := strconv.ParseInt(end, 10, 64)
	return ok && err == nil && err2 == nil && a == size && z >= a
}

// take reports whether a body was cut off, which is its sender's fault or the
// network's.
func (im *images) take(r *http.Request, u *upload, limit int64) (cut bool, err error) {
	if err := im.checkSpace(u.repositoryURL, max(r.ContentLength, 0)); err != nil {
		return false, err
	}
	f, err := os.OpenFile(u.file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return false, unwritten(im.dir, err)
	}
	defer f.Close()
	buf := make([]byte, 128<<10)
	for unchecked := 0; ; {
		n, end := r.Body.Read(buf)
		if u.size+int64(n) > limit {
			return false, refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "it is longer than %s", mebibytes(limit))
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return false, unwritten(im.dir, err)
		}
		_, _ = u.sum.Write(buf[:n])
		im.mu.Lock()
		u.size += int64(n)
		im.mu.Unlock()
		if unchecked += n; unchecked >= checkEvery || end == io.EOF {
			unchecked = 0
			if err := im.checkSpace(u.repositoryURL, 0); err != nil {
				return false, err
			}
		}
		switch {
		case end == io.EOF:
			return false, nil
		case errors.Is(end, os.ErrDeadlineExceeded):
			return true, refuse(http.StatusRequestTimeout, "BLOB_UPLOAD_INVALID", "after %d bytes nothing more came", u.size)
		case end != nil:
			return true, refuse(http.StatusBadRequest, "BLOB_UPLOAD_INVALID", "after %d bytes the body broke off: %v", u.size, end)
		case r.Context().Err() != nil: // the server ends, or who sends was revoked
			return true, context.Cause(r.Context())
		}
	}
}

// finish makes a blob of an upload and what may still come.
func (im *images) finish(w http.ResponseWriter, r *http.Request, u *upload, digest string) error {
	if err := im.receive(w, r, u, maxBlob); err != nil {
		return err
	}
	if err := im.keepBlob(u, digest); err != nil {
		im.drop(u)
		return err
	}
	w.Header().Set("Location", u.to(kindBlob, digest))
	w.Header().Set("Docker-Content-Digest", digest)
	w.WriteHeader(http.StatusCreated)
	return nil
}

func (im *images) keepBlob(u *upload, digest string) error {
	if got := "sha256:" + hex.EncodeToString(u.sum.Sum(nil)); got != digest {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "what came is %s, not %s", got, digest)
	}
	if err := syncPath(u.file); err != nil { // errors of writing may come as late as here
		return unwritten(im.dir, err)
	}
	if err := im.settle(u, digest); err != nil {
		return unwritten(im.dir, err)
	}
	if err := syncPath(im.blobDir); err != nil {
		return unwritten(im.dir, err)
	}
	return nil
}

// settle gives an upload its place among the blobs.
func (im *images) settle(u *upload, digest string) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if err := os.Rename(u.file, im.blobFile(digest)); err != nil {
		return err
	}
	delete(im.uploads, u.id)
	im.own(u.tenant, digest, holding{u.size, im.clock()})
	return nil
}

// syncPath has a file's contents, or the names in a folder, outlast a power loss.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
