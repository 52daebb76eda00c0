package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/onpath/onpath"
)

// Progress is told how far an image is pushed, in bytes of what was missing.
type Progress func(done, total int64)

// PushImage sends a local image (an OCI layout as a directory or tar archive, or an
// archive of `docker save`, also compressed by gzip or zstd) to the server, and returns the reference under
// which nodes pull it. Layers that are there already are not sent.
func (c *Client) PushImage(ctx context.Context, tenant, path string, progress Progress) (string, error) {
	image, done, err := openImage(path)
	if err != nil {
		return "", err
	}
	defer done()
	p := &push{c: c, ctx: ctx, repo: tenant + "/" + repoName(path), progress: progress}
	digest, err := p.image(image)
	if err != nil {
		return "", err
	}
	return onpath.ImageHost + "/" + p.repo + "@" + digest, nil
}

// HasImage reports whether the server keeps the image that was pushed to it under
// ref, which PushImage or ImageRef returned there.
func (c *Client) HasImage(ctx context.Context, ref string) (bool, error) {
	repo, digest, ok := strings.Cut(strings.TrimPrefix(ref, onpath.ImageHost+"/"), "@")
	if !ok {
		if repo, digest, ok = strings.Cut(repo, ":"); !ok {
			digest = "latest"
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, c.URL()+"/v2/"+repo+"/manifests/"+digest, nil)
	if err != nil {
		return false, err
	}
	answer, err := c.ask(r)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	return answer.StatusCode != http.StatusNotFound, nil
}

// ImageRef is the reference that PushImage would return; nothing is sent.
func ImageRef(tenant, path string) (string, error) {
	image, done, err := openImage(path)
	if err != nil {
		return "", err
	}
	defer done()
	digest, err := image.Digest()
	if err != nil {
		return "", onpath.Errorf(onpath.CodeInvalid, "image %s: %w", path, err)
	}
	return onpath.ImageHost + "/" + tenant + "/" + repoName(path) + "@" + digest.String(), nil
}

// push sends one image.
type push struct {
	c           *Client
	ctx         context.Context
	repo        string
	progress    Progress
	done, total int64
}

// blob is a layer or a config.
type blob struct {
	digest string
	size   int64
	open   func() (io.ReadCloser, error)
}

func (p *push) image(image v1.Image) (digest string, err error) {
	manifest, err := image.RawManifest()
	if err != nil {
		return "", err
	}
	mediaType, err := image.MediaType()
	if err != nil {
		return "", err
	}
	blobs, err := blobsOf(image)
	if err != nil {
		return "", err
	}
	var missing []blob
	for _, b := range blobs {
		there, err := p.has(b.digest)
		if err != nil {
			return "", err
		}
		if !there {
			missing = append(missing, b)
			p.total += b.size
		}
	}
	for _, b := range missing {
		if err := p.blob(b); err != nil {
			return "", err
		}
	}
	h := sha256.Sum256(manifest)
	digest = "sha256:" + hex.EncodeToString(h[:])
	r, err := p.request(http.MethodPut, "manifests/"+digest, bytes.NewReader(manifest))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", string(mediaType))
	return digest, p.expect(r, http.StatusCreated)
}

func blobsOf(image v1.Image) ([]blob, error) {
	config, err := image.RawConfigFile()
	if err != nil {
		return nil, err
	}
	name, err := image.ConfigName()
	if err != nil {
		return nil, err
	}
	list := []blob{{name.String(), int64(len(config)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(config)), nil }}}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		digest, err1 := l.Digest()
		size, err2 := l.Size()
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		list = append(list, blob{digest.String(), size, l.Compressed})
	}
	return list, nil
}

func (p *push) request(method, rest string, body io.Reader) (*http.Request, error) {
	if _, err := name.NewRepository(onpath.ImageHost + "/" + p.repo); err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s is no name for an image: %w", p.repo, err)
	}
	return http.NewRequestWithContext(p.ctx, method, p.c.URL()+"/v2/"+p.repo+"/"+rest, body)
}

func (p *push) has(digest string) (bool, error) {
	r, err := p.request(http.MethodHead, "blobs/"+digest, nil)
	if err != nil {
		return false, err
	}
	answer, err := p.c.ask(r)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK, nil
}

func (p *push) blob(b blob) error {
	in, err := b.open()
	if err != nil {
		e := onpath.Errorf(onpath.CodeInvalid, "the image names %s, which cannot be read: %w", b.digest, err)
		e.Remedy = "write the image anew"
		return e
	}
	defer in.Close()
	r, err := p.request(http.MethodPost, "blobs/uploads/?digest="+url.QueryEscape(b.digest), &counted{in, p})
	if err != nil {
		return err
	}
	r.ContentLength = b.size
	return p.expect(r, http.StatusCreated)
}

func (p *push) expect(r *http.Request, want int) error {
	answer, err := p.c.ask(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode == want {
		return nil
	}
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
		return problem(answer)
	}
	var refused struct {
		Errors []struct{ Message string } `json:"errors"`
	}
	_ = json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&refused)
	why := answer.Status
	if len(refused.Errors) > 0 {
		why = refused.Errors[0].Message
	}
	return onpath.Errorf(onpath.CodeUnavailable, "the server did not take the image: %s", why)
}

// counted reports progress as a body is read.
type counted struct {
	io.Reader
	p *push
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.p.done += int64(n)
	if c.p.progress != nil && n > 0 {
		c.p.progress(c.p.done, c.p.total)
	}
	return n, err
}
