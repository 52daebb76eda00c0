package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// manifest is one that is kept: a file for its digest, and one for each tag.
type manifest struct {
	repositoryURL
	mediaType, digest string
	size              int64
	blobs             []string // digests of its configuration and layers
	parts             []string // digests of its platforms' manifests
}

func (m *manifest) path() string { return m.to(kindManifest, m.last) }

// as is the manifest under another tag or digest.
func (m *manifest) as(last string) *manifest {
	c := *m
	c.last = last
	return &c
}

// part is the path of a platform's manifest.
func (m *manifest) part(digest string) string { return m.to(kindManifest, digest) }

func readManifest(p repositoryURL, mediaType string, data []byte) (*manifest, error) {
	sum := sha256.Sum256(data)
	m := &manifest{repositoryURL: p, mediaType: mediaType, digest: "sha256:" + hex.EncodeToString(sum[:]), size: int64(len(data))}
	if strings.HasPrefix(p.last, "sha256:") && p.last != m.digest {
		return nil, refuse(http.StatusBadRequest, "DIGEST_INVALID", "the manifest is %s, not %s", m.digest, p.last)
	}
	var body struct {
		Config    *descriptor  `json:"config"`
		Layers    []descriptor `json:"layers"`
		Manifests []descriptor `json:"manifests"`
	}
	err := json.Unmarshal(data, &body)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "MANIFEST_INVALID", "the manifest cannot be read: %v", err)
	}
	if body.Config != nil {
		body.Layers = append(body.Layers, *body.Config)
	}
	if m.blobs, err = digests(body.Layers); err == nil {
		m.parts, err = digests(body.Manifests)
	}
	return m, err
}

// descriptor is how a manifest names something.
type descriptor struct {
	Digest string `json:"digest"`
}

// digests are what a list names, each once.
func digests(list []descriptor) (all []string, err error) {
	for _, d := range list {
		if !digestRef.MatchString(d.Digest) {
			return nil, refuse(http.StatusBadRequest, "MANIFEST_INVALID", "the manifest names %q, which is no sha256 digest", d.Digest)
		}
		all = append(all, d.Digest)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// A manifest's file is named after its path and media type.
func manifestFile(path, mediaType string) string {
	return url.QueryEscape(path) + "," + url.QueryEscape(mediaType)
}

func parseManifestFile(name string) (p repositoryURL, mediaType string, ok bool) {
	a, b, ok := strings.Cut(name, ",")
	path, err1 := url.QueryUnescape(a)
	mediaType, err2 := url.QueryUnescape(b)
	if !ok || err1 != nil || err2 != nil {
		return p, "", false
	}
	p, ok = repositoryOf(path)
	return p, mediaType, ok && p.kind == kindManifest
}

// maxFileName leaves room for what a file is called while it is written.
const maxFileName = 235

func (im *images) manifestFile(m *manifest) string {
	return filepath.Join(im.manifestDir, manifestFile(m.path(), m.mediaType))
}

// load makes the protocol and all that is known of images anew, of what is on
// disk. It needs writing.
func (im *images) load() error {
	type found struct {
		*manifest
		data []byte
	}
	files, err := os.ReadDir(im.manifestDir)
	if err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "image directory: %w", err)
	}
	var list []found
	im.unread = nil
	for _, f := range files {
		p, mediaType, ok := parseManifestFile(f.Name())
		if !ok {
			continue
		}
		data, err := os.ReadFile(filepath.Join(im.manifestDir, f.Name()))
		if err != nil {
			im.unread = errors.Join(im.unread, err)
			continue
		}
		m, err := readManifest(p, mediaType, data)
		if err != nil {
			im.log.Warn("an image's manifest on disk is left out", "path", p.to(kindManifest, p.last), "error", err)
			continue
		}
		list = append(list, found{m, data})
	}
	protocol := registry.New(registry.Logger(slog.NewLogLogger(im.log.Handler(), slog.LevelDebug)))
	manifests := map[string]*manifest{}
	// Those of several platforms name others, which must be there first.
	for before := -1; before != len(list); {
		before = len(list)
		list = slices.DeleteFunc(list, func(f found) bool {
			if put(protocol, f.manifest, f.data).Code != http.StatusCreated {
				return false
			}
			manifests[f.path()] = f.manifest
			return true
		})
	}
	for _, f := range list {
		im.log.Warn("an image's manifest on disk is left out: it names others that are not there", "path", f.path())
	}
	for _, m := range slices.Collect(maps.Values(manifests)) {
		// Earlier versions wrote those of tags once: the digest is to outlast the tag.
		if d := m.as(m.digest); manifests[d.path()] == nil && os.Link(im.manifestFile(m), im.manifestFile(d)) == nil {
			manifests[d.path()] = d
		}
	}
	im.mu.Lock()
	im.protocol, im.manifests = protocol, manifests
	im.mu.Unlock()
	im.recount()
	return nil
}

// put tells the protocol of a manifest.
func put(protocol http.Handler, m *manifest, data []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPut, m.path(), bytes.NewReader(data))
	r.Header.Set("Content-Type", m.mediaType)
	answer := httptest.NewRecorder()
	protocol.ServeHTTP(answer, r)
	return answer
}

func (im *images) pushManifest(w http.ResponseWriter, r *http.Request, p repositoryURL) error {
	u, err := im.begin(p) // so that who sends many at once fills the disk, which is counted, and not memory
	if err != nil {
		return err
	}
	defer im.drop(u)
	u.user = false // the share is of blobs: who has used it up may still name what is there
	if err := im.receive(w, r, u, maxManifest); err != nil {
		return err
	}
	answer, err := im.addManifest(p, r.Header.Get("Content-Type"), u.file)
	if err != nil {
		return err
	}
	if answer.Code == http.StatusCreated {
		w.Header().Set("Location", r.URL.Path)
	}
	pass(w, answer)
	return nil
}

// addManifest takes the manifest in a file in.
func (im *images) addManifest(p repositoryURL, mediaType, file string) (*httptest.ResponseRecorder, error) {
	im.writing.Lock() // the sweep takes nothing of what was found to be there
	defer im.writing.Unlock()
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m, err := readManifest(p, mediaType, data)
	if err != nil {
		return nil, err
	}
	all := []*manifest{m.as(m.digest)} // also of a tag, for those who go on using it when the tag moves
	if m.last != m.digest {
		all = append(all, m)
	}
	for _, m := range all {
		if name := filepath.Base(im.manifestFile(m)); len(name) > maxFileName {
			return nil, refuse(http.StatusBadRequest, "NAME_INVALID", "the name of the image is too long: %s", m.path())
		}
	}
	sizes, err := im.complete(m)
	if err != nil {
		return nil, err
	}
	if err := im.checkManifests(p, all); err != nil {
		return nil, err
	}
	answer := put(im.protocol, m, data)
	if answer.Code != http.StatusCreated {
		return answer, nil
	}
	for _, m := range all {
		if err := im.keepManifest(m, data); err != nil {
			return nil, errors.Join(unwritten(im.dir, err), im.load()) // the protocol knows it already
		}
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	for digest, size := range sizes {
		im.own(m.tenant, digest, holding{size, im.owned[m.tenant][digest].seen})
	}
	return answer, nil
}

// complete finds the sizes of the blobs that a manifest names, and refuses one
// that names what is not there.
func (im *images) complete(m *manifest) (sizes map[string]int64, err error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	sizes = map[string]int64{}
	for _, digest := range m.blobs {
		size, ok := im.blob(m.repositoryURL, digest)
		if !ok {
			return nil, refuse(http.StatusNotFound, "MANIFEST_BLOB_UNKNOWN",
				"the manifest names the blob %s, which was not pushed to tenant %s", digest, m.tenant)
		}
		sizes[digest] = size
	}
	for _, digest := range m.parts {
		if im.manifests[m.part(digest)] == nil {
			return nil, refuse(http.StatusNotFound, "MANIFEST_BLOB_UNKNOWN",
				"the manifest names the manifest %s, which was not pushed to %s", digest, m.repo)
		}
	}
	return sizes, nil
}

// checkManifests refuses more manifests than a tenant may have: the protocol keeps
// them in memory.
func (im *images) checkManifests(p repositoryURL, more []*manifest) error {
	if !p.user {
		return nil
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	n, bytes := 0, int64(0)
	for _, m := range im.manifests {
		if m.tenant == p.tenant {
			n++
			bytes += m.size
		}
	}
	for _, m := range more {
		if was := im.manifests[m.path()]; was != nil {
			n--
			bytes -= was.size
		}
		n++
		bytes += m.size
	}
	if n <= maxManifests && bytes <= maxManifestBytes {
		return nil
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "tenant %s would have %d manifests and tags of images, of %s; it may have %d, of %s",
		p.tenant, n, mebibytes(bytes), maxManifests, mebibytes(maxManifestBytes))
	e.Remedy = "push less often: those that nothing uses go after a day"
	return e
}

// keepManifest writes a manifest where the protocol knows it already. It needs
// writing.
func (im *images) keepManifest(m *manifest, data []byte) error {
	if err := wholefile.Write(im.manifestFile(m), data, 0o600); err != nil {
		return err
	}
	was := im.manifests[m.path()]
	if was != nil && was.mediaType != m.mediaType {
		if err := os.Remove(im.manifestFile(was)); err != nil {
			return fmt.Errorf("the former manifest stays: %w", err)
		}
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	im.manifests[m.path()] = m
	return nil
}

// deleteManifest removes a tag, or a digest and all tags of it in its repository.
func (im *images) deleteManifest(w http.ResponseWriter, r *http.Request) error {
	if err := im.removeManifest(r.URL.Path); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (im *images) removeManifest(path string) error {
	im.writing.Lock()
	defer im.writing.Unlock()
	m := im.manifests[path]
	if m == nil {
		return refuse(http.StatusNotFound, "MANIFEST_UNKNOWN", "there is no %s", path)
	}
	for _, other := range im.manifests {
		if other == m || (m.last == m.digest && other.repo == m.repo && other.digest == m.digest) {
			if err := os.Remove(im.manifestFile(other)); err != nil {
				return unwritten(im.dir, err)
			}
		}
	}
	return im.load()
}
