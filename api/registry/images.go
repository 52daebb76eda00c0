package registry

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/internal/wholefile"
)

// images is the server's own registry (OCI distribution specification 1.1):
// function images that apply pushed, for the nodes to pull. Repositories are
// TENANT/NAME. Blobs and uploads are files, which are served and written here.
// Manifests and tags are go-containerregistry's, which keeps them in memory; they
// are kept on disk, too, and given to it again at the start.
type images struct {
	dir                             string // with these in it
	blobDir, manifestDir, uploadDir string

	quota int64 // bytes of one tenant's images, for its users
	clock onpath.Clock
	log   *slog.Logger
	free  func() (bytes int64, ok bool) // of the disk
	// planned reports whether a node's plan names an image of a repository.
	planned func(node, repository string) bool

	// writing is held by what adds manifests or removes files, and taken before
	// mu. Neither is held while a body is read or an answer is written: who is slow
	// delays nobody.
	writing sync.Mutex
	unread  error // manifests on disk that could not be read; under writing

	mu        sync.Mutex
	protocol  http.Handler                  // of manifests and tags
	manifests map[string]*manifest          // by path
	owned     map[string]map[string]holding // blobs by tenant and digest
	uploads   map[string]*upload            // by id
}

// The limits of one request, in bytes.
const (
	maxBlob     = 16 << 30
	maxManifest = 4 << 20
	// imageReserve is what must stay free on the disk: the store needs it.
	imageReserve = 512 << 20
)

// The limits of one tenant, for its users.
const (
	defaultImageQuota = 16 << 30 // bytes of blobs and uploads
	maxUploads        = 32       // open at once
	maxManifests      = 1000     // tags count as well
	maxManifestBytes  = 64 << 20 // of all its manifests
)

// openRegistry serves what is in dir. A quota of 0 is the default.
func openRegistry(dir string, quota int64, clock onpath.Clock, log *slog.Logger) (*images, error) {
	dir = filepath.Join(dir, "images")
	im := &images{
		dir: dir, blobDir: filepath.Join(dir, "sha256"), manifestDir: filepath.Join(dir, "manifests"),
		uploadDir: filepath.Join(dir, "uploads"), quota: cmp.Or(quota, defaultImageQuota), clock: clock, log: log,
		uploads: map[string]*upload{},
	}
	im.free = func() (int64, bool) {
		var st unix.Statfs_t
		err := unix.Statfs(im.dir, &st)
		return int64(st.Bavail) * st.Bsize, err == nil
	}
	_ = os.RemoveAll(im.uploadDir) // the client that began them has to begin again
	left, _ := filepath.Glob(filepath.Join(im.blobDir, "upload-*"))
	for _, f := range left { // of earlier versions
		_ = os.Remove(f)
	}
	for _, d := range []string{im.blobDir, im.manifestDir, im.uploadDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "image directory: %w", err)
		}
	}
	if err := wholefile.Clean(im.manifestDir); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "image directory: %w", err)
	}
	im.writing.Lock()
	defer im.writing.Unlock()
	return im, im.load()
}

// repositoryURL is what a path of the registry names, and whether one asks who is held to
// what is his tenant's.
type repositoryURL struct {
	kind         string // "": the registry
	repo, tenant string
	last         string // tag, digest or upload
	user         bool
}

// What a path may name.
const (
	kindManifest  = "manifests"
	kindBlob      = "blobs"
	kindUpload    = "blobs/uploads"
	kindTags      = "tags"
	kindReferrers = "referrers"
	kindCatalog   = "_catalog"
)

const element = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`

var (
	repositoryForm = regexp.MustCompile(`^/v2/(` + element + `(?:/` + element +
		`)*)/(manifests|blobs/uploads|blobs|tags|referrers)(?:/([^/]*))?$`)
	digestRef = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	lastOf    = map[string]*regexp.Regexp{
		kindManifest: regexp.MustCompile(`^(?:sha256:[0-9a-f]{64}|[A-Za-z0-9_][A-Za-z0-9._-]{0,127})$`),
		kindBlob:     digestRef, kindReferrers: digestRef,
		kindUpload: regexp.MustCompile(`^[A-Z0-9]*$`), // "": a new one
		kindTags:   regexp.MustCompile(`^list$`),
	}
)

func repositoryOf(path string) (repositoryURL, bool) {
	switch path {
	case "/v2/":
		return repositoryURL{}, true
	case "/v2/_catalog":
		return repositoryURL{kind: kindCatalog}, true
	}
	m := repositoryForm.FindStringSubmatch(path)
	if m == nil || !lastOf[m[2]].MatchString(m[3]) {
		return repositoryURL{}, false
	}
	tenant, _, _ := strings.Cut(m[1], "/")
	return repositoryURL{kind: m[2], repo: m[1], tenant: tenant, last: m[3]}, true
}

// to is the path of something else in the same repository.
func (p repositoryURL) to(kind, last string) string { return "/v2/" + p.repo + "/" + kind + "/" + last }

// refusal is an error in the form that registries' clients know.
type refusal struct {
	status        int
	code, message string
}

func (e *refusal) Error() string { return e.message }

func refuse(status int, code, format string, args ...any) error {
	return &refusal{status, code, fmt.Sprintf(format, args...)}
}

func (im *images) serve(w http.ResponseWriter, r *http.Request) error {
	p, ok := repositoryOf(r.URL.Path)
	if !ok {
		return refuse(http.StatusNotFound, "NAME_UNKNOWN", "there is no %s in a registry", r.URL.Path)
	}
	who := rights.WhoIs(r.Context())
	if err := mayImage(who, r.Method, p); err != nil {
		return err
	}
	if who.Role == auth.RoleNode && p.kind != "" && im.planned != nil && !im.planned(who.Name, p.repo) {
		return rights.Forbidden(who, "pull "+p.repo+", of which nothing runs on it by its plan")
	}
	p.user = who.Tenanted()
	switch {
	case p.kind == kindBlob:
		return im.serveBlob(w, r, p)
	case p.kind == kindUpload:
		return im.serveUpload(w, r, p)
	case p.kind == kindManifest && r.Method == http.MethodPut:
		return im.pushManifest(w, r, p)
	case p.kind == kindManifest && r.Method == http.MethodDelete:
		return im.deleteManifest(w, r)
	}
	return im.ask(w, r)
}

func reads(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// mayImage: nodes pull (what their plans name, as the caller sees to), users push to and
// pull from their tenant's repositories, what shows all tenants' is for operators.
func mayImage(who auth.Identity, method string, p repositoryURL) error {
	v := rights.Push
	if reads(method) {
		v = rights.Pull
	}
	switch {
	case who.Role == auth.RoleOperator:
		return nil
	case p.kind == kindCatalog:
		return rights.Forbidden(who, "list all repositories")
	case p.kind == kindReferrers:
		return rights.Forbidden(who, "list what refers to an image")
	case v == rights.Pull && p.kind == "":
		return nil
	case method == http.MethodDelete && p.kind != kindUpload:
		return rights.Forbidden(who, "delete images")
	}
	return rights.Authorize(who, v, "", p.tenant, "")
}

// ask has the protocol answer into memory first, since it holds a lock meanwhile.
func (im *images) ask(w http.ResponseWriter, r *http.Request) error {
	if !reads(r.Method) {
		return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "%s is not supported for %s", r.Method, r.URL.Path)
	}
	if n := r.URL.Query().Get("n"); n != "" {
		if _, err := strconv.ParseUint(n, 10, 31); err != nil {
			return refuse(http.StatusBadRequest, "PAGINATION_NUMBER_INVALID", "n=%s is no amount", n)
		}
	}
	im.mu.Lock()
	protocol := im.protocol
	if m := im.manifests[r.URL.Path]; m != nil {
		im.touch(im.manifestFile(m))
	}
	im.mu.Unlock()
	answer := httptest.NewRecorder()
	protocol.ServeHTTP(answer, r)
	pass(w, answer)
	return nil
}

// pass sends an answer of the protocol on.
func pass(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	if answer.Code >= http.StatusBadRequest {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// checkSpace refuses what has no room on the disk, or takes a tenant past its share.
// More is what is going to come; it is not counted yet.
func (im *images) checkSpace(p repositoryURL, more int64) error {
	if free, ok := im.free(); ok && free-imageReserve < more {
		return full(im.dir)
	}
	if !p.user {
		return nil
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if used := im.used(p.tenant); im.quota-used < more {
		e := onpath.Errorf(onpath.CodeNoCapacity, "the images of tenant %s would take %s, and it may have %s",
			p.tenant, mebibytes(used+more), mebibytes(im.quota))
		e.Remedy = "delete functions whose images are not needed: those go after a day; or ask an operator for a larger imageQuota"
		return e
	}
	return nil
}

// mebibytes is an amount as people are told it, rounded up.
func mebibytes(n int64) onpath.Size { return onpath.Size((n + 1<<20 - 1) &^ (1<<20 - 1)) }

func full(dir string) error {
	e := onpath.Errorf(onpath.CodeUnavailable, "the disk of %s is full: the image does not fit", dir)
	e.Remedy = "free space on the server, or delete functions whose images are not needed"
	return e
}

// used is how many bytes a tenant has. It needs mu.
func (im *images) used(tenant string) (bytes int64) {
	for _, h := range im.owned[tenant] {
		bytes += h.size
	}
	for _, u := range im.uploads {
		if u.tenant == tenant {
			bytes += u.size
		}
	}
	return bytes
}
