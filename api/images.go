package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// images is the server's own OCI distribution endpoint: function images that
// apply pushed, for the nodes to pull. Repositories are TENANT/NAME. The protocol
// is go-containerregistry's; it keeps manifests in memory, so they are kept on
// disk beside the blobs here and given to it again at the start.
type images struct {
	dir      string
	log      *slog.Logger
	protocol http.Handler

	mu sync.RWMutex // held for writing while images are swept
}

// The limits of one request, in bytes.
const (
	maxBlob     = 16 << 30
	maxChunked  = 512 << 20 // of chunked uploads, which the protocol buffers
	maxManifest = 4 << 20
	// imageReserve is what must stay free on the disk.
	imageReserve = 512 << 20
)

func openImages(dir string, log *slog.Logger) (*images, error) {
	im := &images{dir: filepath.Join(dir, "images"), log: log}
	for _, d := range []string{im.blobDir(), im.manifestDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "image directory: %w", err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(im.blobDir(), "upload-*")); err == nil {
		for _, f := range left { // of uploads that a crash cut off
			_ = os.Remove(f)
		}
	}
	return im, im.load()
}

func (im *images) blobDir() string     { return filepath.Join(im.dir, "sha256") }
func (im *images) manifestDir() string { return filepath.Join(im.dir, "manifests") }

// load gives the protocol the manifests on disk.
func (im *images) load() error {
	im.protocol = registry.New(registry.WithBlobHandler(blobs{im.blobDir()}),
		registry.Logger(slog.NewLogLogger(im.log.Handler(), slog.LevelDebug)))
	files, err := os.ReadDir(im.manifestDir())
	if err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "image directory: %w", err)
	}
	// Manifests of several platforms name others, which must be there first.
	for range 2 {
		for _, f := range files {
			path, mediaType, ok := parseManifestFile(f.Name())
			data, err := os.ReadFile(filepath.Join(im.manifestDir(), f.Name()))
			if !ok || err != nil {
				continue
			}
			r := httptest.NewRequest(http.MethodPut, path, bytes.NewReader(data))
			r.Header.Set("Content-Type", mediaType)
			im.protocol.ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	return nil
}

// A manifest's file is named after its path and media type.
func manifestFile(path, mediaType string) string {
	return url.QueryEscape(path) + "," + url.QueryEscape(mediaType)
}

func parseManifestFile(name string) (path, mediaType string, ok bool) {
	a, b, ok := strings.Cut(name, ",")
	path, err1 := url.QueryUnescape(a)
	mediaType, err2 := url.QueryUnescape(b)
	return path, mediaType, ok && err1 == nil && err2 == nil && strings.HasPrefix(path, "/v2/")
}

func isImage(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v2/") }

func (s *Server) serveImages(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // images are large, links slow
	if err := mayImage(r); err != nil {
		s.fail(w, r, err)
		return
	}
	s.images.mu.RLock()
	defer s.images.mu.RUnlock()
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		s.images.protocol.ServeHTTP(w, r)
		return
	}
	if err := s.images.push(w, r); err != nil {
		s.fail(w, r, err)
	}
}

// mayImage: nodes pull everything, users push to and pull from their tenant's
// repositories.
func mayImage(r *http.Request) error {
	who := whoIs(r.Context())
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	tenant, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
	switch {
	case who.Role == auth.RoleOperator:
		return nil
	case read && (who.Role == auth.RoleNode || r.URL.Path == "/v2/"):
		return nil
	case who.Role == auth.RoleUser && tenant == who.Tenant && r.Method != http.MethodDelete &&
		r.URL.Query().Get("mount") == "":
		return nil
	}
	return forbidden(who, "use the images of "+tenant)
}

func (im *images) push(w http.ResponseWriter, r *http.Request) error {
	var st unix.Statfs_t
	if unix.Statfs(im.dir, &st) == nil && int64(st.Bavail)*st.Bsize < imageReserve+max(r.ContentLength, 0) {
		e := onpath.Errorf(onpath.CodeUnavailable, "the disk of %s is full: the image does not fit", im.dir)
		e.Remedy = "free space on the server, or delete functions whose images are not needed"
		return e
	}
	manifest := r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/")
	switch {
	case manifest:
		return im.pushManifest(w, r)
	case r.Method == http.MethodPatch:
		r.Body = http.MaxBytesReader(w, r.Body, maxChunked)
	default:
		r.Body = http.MaxBytesReader(w, r.Body, maxBlob)
	}
	im.protocol.ServeHTTP(w, r)
	return nil
}

func (im *images) pushManifest(w http.ResponseWriter, r *http.Request) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxManifest))
	if err != nil {
		return onpath.Errorf(onpath.CodeInvalid, "image manifest: %w", err)
	}
	name := manifestFile(r.URL.Path, r.Header.Get("Content-Type"))
	if len(name) > 250 {
		return onpath.Errorf(onpath.CodeInvalid, "the name of the image is too long: %s", r.URL.Path)
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	answer := httptest.NewRecorder()
	im.protocol.ServeHTTP(answer, r)
	if answer.Code == http.StatusCreated {
		if err := writeWhole(filepath.Join(im.manifestDir(), name), bytes.NewReader(data)); err != nil {
			return onpath.Errorf(onpath.CodeUnavailable, "keep the image: %w", err)
		}
	}
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
	return nil
}

// blobs keeps blobs as files named by their hash.
type blobs struct{ dir string }

func (b blobs) path(h v1.Hash) string { return filepath.Join(b.dir, h.Hex) }

// Stat implements registry.BlobStatHandler.
func (b blobs) Stat(_ context.Context, _ string, h v1.Hash) (int64, error) {
	info, err := os.Stat(b.path(h))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, registry.ErrNotFound
	} else if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Get implements registry.BlobHandler.
func (b blobs) Get(_ context.Context, _ string, h v1.Hash) (io.ReadCloser, error) {
	f, err := os.Open(b.path(h))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, registry.ErrNotFound
	}
	return f, err
}

// Put implements registry.BlobPutHandler; in verifies the hash as it is read.
func (b blobs) Put(_ context.Context, _ string, h v1.Hash, in io.ReadCloser) error {
	defer in.Close()
	if h.Algorithm != "sha256" {
		return fmt.Errorf("hash algorithm %s is not supported", h.Algorithm)
	}
	return writeWhole(b.path(h), in)
}

// writeWhole writes a file that is there whole or not at all.
func writeWhole(path string, from io.Reader) error {
	f, err := os.CreateTemp(filepath.Dir(path), "upload-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, from)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
