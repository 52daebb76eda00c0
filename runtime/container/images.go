package container

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/onpath/onpath"
)

// HostImage is the image name that stands for the node's root file system.
const HostImage = "host"

// Prepare implements onpath.Runtime.
func (d *Driver) Prepare(ctx context.Context, spec *onpath.FunctionSpec, progress func(string)) error {
	if spec.Container == nil {
		return onpath.Errorf(onpath.CodeUnsupported, "the function is not of kind container")
	}
	if progress == nil {
		progress = func(string) {}
	}
	_, err := d.image(ctx, spec.Container.Image, progress)
	return err
}

// image finds the unpacked image of a function, fetching what is missing; nil
// for HostImage.
func (d *Driver) image(ctx context.Context, name string, progress func(string)) (containerd.Image, error) {
	ctx = d.scope(ctx)
	switch {
	case name == "":
		return nil, onpath.Errorf(onpath.CodeInvalid, "the function names no image")
	case name == HostImage:
		if !d.opt.HostImage {
			return nil, &onpath.Error{Code: onpath.CodeForbidden,
				Message: "image: host is not permitted on this node, since it shows the operator's files",
				Remedy:  "use an image, or permit it in the node's configuration"}
		}
		return nil, nil
	}
	key, local, err := imageKey(name)
	if err != nil {
		return nil, err
	}
	// Lookups need no lock; fetching the same image twice would be waste.
	if img := d.unpacked(ctx, key); img != nil && (local || strings.Contains(name, "@")) {
		return img, nil
	}
	if img := d.byDigest(ctx, name); img != nil {
		return img, nil
	}
	done, err := d.fetching.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer done()
	if img := d.unpacked(ctx, key); img != nil && (local || strings.Contains(name, "@")) {
		return img, nil
	}
	// A tag that cannot be looked up anew is as good as what is here.
	img := d.unpacked(ctx, key)
	if img != nil {
		now, err := d.ask(ctx, key)
		if err != nil {
			d.log.Warn("image could not be looked up anew; the copy here is used", "image", name, "err", err)
		}
		if err != nil || now == img.Target().Digest {
			return img, nil
		}
	}
	if local {
		err = d.importLocal(ctx, name, key, progress)
	} else {
		err = d.pull(ctx, key, progress)
	}
	if err != nil {
		if img != nil {
			d.log.Warn("image could not be fetched anew; the copy here is used", "image", name, "err", err)
			return img, nil
		}
		return nil, err
	}
	img, err = d.unpackedAgain(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", name, err)
	}
	d.dropUnused(ctx, key)
	return img, nil
}

// unusedFor is how long an image stays after it was fetched, with no container
// made of it.
const unusedFor = 24 * time.Hour

// dropUnused deletes our images that nothing uses, but for the one named keep.
func (d *Driver) dropUnused(ctx context.Context, keep string) {
	list, err := d.client.ImageService().List(ctx, fmt.Sprintf("labels.%q==%q", ownerLabel, d.opt.Name))
	if err != nil {
		return
	}
	used := map[string]bool{keep: true}
	all, err := d.client.ContainerService().List(ctx)
	if err != nil {
		return
	}
	for _, c := range all {
		used[c.Image] = true
	}
	for _, img := range list {
		if used[img.Name] || time.Since(img.CreatedAt) < unusedFor {
			continue
		}
		if err := d.client.ImageService().Delete(ctx, img.Name); err == nil {
			d.log.Info("dropped an image that nothing uses", "image", img.Name)
		}
	}
}

// keyedLock keeps two from fetching the same image; different ones do not wait
// for each other, or a registry that hangs would hold up everything.
type keyedLock struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (l *keyedLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		other, taken := l.held[key]
		if !taken {
			mine := make(chan struct{})
			l.held[key] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, key)
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (d *Driver) unpacked(ctx context.Context, key string) containerd.Image {
	img, err := d.client.GetImage(ctx, key)
	if err != nil {
		return nil
	}
	if ok, err := img.IsUnpacked(ctx, d.opt.Snapshotter); err != nil || !ok {
		return nil
	}
	return img
}

// unpackedAgain is the image that was just fetched. A fetch does not hold the snapshots that
// it finds: if the last other image with these layers was deleted meanwhile, containerd drops
// the snapshots, and they have to be made again.
func (d *Driver) unpackedAgain(ctx context.Context, key string) (containerd.Image, error) {
	img, err := d.client.GetImage(ctx, key)
	if err != nil {
		return nil, err
	}
	for range 3 {
		is, err := img.IsUnpacked(ctx, d.opt.Snapshotter)
		if is || err != nil {
			return img, err
		}
		if err := img.Unpack(ctx, d.opt.Snapshotter); err != nil {
			return nil, err
		}
	}
	return nil, onpath.Errorf(onpath.CodeUnavailable, "other images of the same layers are being deleted; try again")
}

// byDigest is an unpacked image of the digest that a reference ends in, whatever tag of the
// same repository it was fetched by; nil if there is none. Who may read one repository may
// not read another, though both have the image.
func (d *Driver) byDigest(ctx context.Context, name string) containerd.Image {
	_, is, ok := strings.Cut(name, "@")
	if !ok {
		return nil
	}
	list, err := d.client.ListImages(ctx, fmt.Sprintf("target.digest==%q", is))
	if err != nil {
		return nil
	}
	for _, img := range list {
		if repositoryOf(img.Name()) != repositoryOf(name) {
			continue
		}
		if found := d.unpacked(ctx, img.Name()); found != nil {
			return found
		}
	}
	return nil
}

// repositoryOf is a reference without its tag and digest.
func repositoryOf(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if at := strings.LastIndexByte(ref, ':'); at > strings.LastIndexByte(ref, '/') {
		return ref[:at]
	}
	return ref
}

// askPatience is how long a registry may take to say what a tag means, where there is a
// copy of the image: the traffic of a chain may wait for the answer.
const askPatience = 3 * time.Second

// ask asks a registry what a tag means.
func (d *Driver) ask(ctx context.Context, ref string) (digest.Digest, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	_, is, err := docker.NewResolver(docker.ResolverOptions{Hosts: d.registryHosts()}).Resolve(ctx, ref)
	return is.Digest, err
}

// imageKey is the name under which containerd keeps the image: for local files
// one made from the digest of their index, so that equal contents are one image.
func imageKey(name string) (key string, local bool, err error) {
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "./") && !strings.HasPrefix(name, "../") {
		return name, false, nil
	}
	index, err := readIndex(name)
	if err != nil {
		code := onpath.CodeInvalid
		if errors.Is(err, fs.ErrNotExist) {
			code = onpath.CodeNotFound
		}
		return "", true, &onpath.Error{Code: code, Message: fmt.Sprintf("image %s: %v", name, err),
			Remedy: "give an OCI archive, an OCI layout directory or a registry reference", Cause: err}
	}
	sum := sha256.Sum256(index)
	return "onpath.local/image:" + hex.EncodeToString(sum[:]), true, nil
}

func (d *Driver) importLocal(ctx context.Context, path, key string, progress func(string)) error {
	r, err := openArchive(path)
	if err != nil {
		return fmt.Errorf("image %s: %w", path, err)
	}
	defer r.Close()
	progress("importing image " + filepath.Base(path))
	client, err := d.bounded()
	if err != nil {
		return unavailable("fetch an image", err)
	}
	defer client.Close()
	_, err = client.Import(ctx, r, containerd.WithIndexName(key),
		containerd.WithImageLabels(map[string]string{ownerLabel: d.opt.Name}),
		containerd.WithImageRefTranslator(func(string) string { return "" }))
	if err != nil {
		return &onpath.Error{Code: onpath.CodeInvalid, Message: fmt.Sprintf("image %s cannot be imported: %v", path, err), Cause: err}
	}
	img, err := client.GetImage(ctx, key)
	if err != nil {
		return fmt.Errorf("image %s: %w", path, err)
	}
	if err := runnable(ctx, img); err != nil {
		return d.refused(ctx, key, path, err)
	}
	progress("unpacking image " + filepath.Base(path))
	if err := img.Unpack(ctx, d.opt.Snapshotter); err != nil && !errdefs.IsAlreadyExists(err) {
		return d.refused(ctx, key, path, err)
	}
	return nil
}

// refused forgets an image that cannot be unpacked, so that nothing of it stays, and says
// why it cannot.
func (d *Driver) refused(ctx context.Context, key, name string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if gone := d.client.ImageService().Delete(ctx, key); gone != nil && !errdefs.IsNotFound(gone) {
		d.log.Warn("an image that cannot be unpacked stays", "image", name, "err", gone)
	}
	if e := refusal(err); e != nil {
		return fmt.Errorf("image %s: %w", name, e)
	}
	return fmt.Errorf("unpack image %s: %w", name, err)
}

// platform is what nodes run.
const platform = "linux/" + runtime.GOARCH

func foreign(format string, args ...any) error {
	return &onpath.Error{Code: onpath.CodeInvalid, Message: fmt.Sprintf(format, args...), Remedy: "name an image for " + platform}
}

func artifact(kind string) error {
	return foreign("it is an artifact of type %s and no container image", kind)
}

// runnable refuses what no container can be made of here. containerd's client looks only at
// what an index says of its images, and takes any artifact for an image.
func runnable(ctx context.Context, img containerd.Image) error {
	m, err := images.Manifest(ctx, img.ContentStore(), img.Target(), img.Platform())
	if err != nil {
		return err
	}
	if !images.IsConfigType(m.Config.MediaType) {
		return artifact(cmp.Or(m.ArtifactType, m.Config.MediaType))
	}
	p, err := images.ConfigPlatform(ctx, img.ContentStore(), m.Config)
	if err != nil {
		return err
	}
	if p.OS != "linux" || p.Architecture != "" && p.Architecture != runtime.GOARCH { // what is not said may be anything
		return foreign("it is for %s/%s", p.OS, p.Architecture)
	}
	return nil
}

// pullPatience is how long a pull may take, unpacking included.
const pullPatience = 15 * time.Minute

func (d *Driver) pull(ctx context.Context, ref string, progress func(string)) error {
	progress("pulling image " + ref)
	ctx, cancel := context.WithTimeout(ctx, pullPatience)
	defer cancel()
	client, err := d.bounded()
	if err != nil {
		return unavailable("fetch an image", err)
	}
	defer client.Close()
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: d.registryHosts()})
	found := false // the name: what is not found then is a part
	img, err := client.Pull(ctx, ref, containerd.WithPullUnpack, containerd.WithPullSnapshotter(d.opt.Snapshotter),
		containerd.WithImageHandlerWrapper(func(next images.Handler) images.Handler {
			found = true
			return d.bounds.declared(next)
		}),
		containerd.WithResolver(resolver), containerd.WithPullLabel(ownerLabel, d.opt.Name))
	if err == nil {
		err = runnable(ctx, img)
	}
	switch {
	case err == nil:
		progress("image " + ref + " is here")
		return nil
	case refusal(err) != nil:
		return d.refused(ctx, ref, ref, err)
	case errdefs.IsNotFound(err) && found:
		return fmt.Errorf("image %s: %w", ref, foreign("it holds none for %s, or lacks a part of it", platform))
	case errdefs.IsNotFound(err):
		return &onpath.Error{Code: onpath.CodeNotFound, Message: fmt.Sprintf("image %s does not exist", ref),
			Remedy: "correct its name or tag", Cause: err}
	case errdefs.IsInvalidArgument(err):
		return &onpath.Error{Code: onpath.CodeInvalid, Message: fmt.Sprintf("image %s: %v", ref, err), Cause: err}
	}
	return &onpath.Error{Code: onpath.CodeUnavailable, Cause: err,
		Message: fmt.Sprintf("image %s cannot be pulled: %s", ref, pullReason(err))}
}

// pullReason says why a registry does not give an image, without the steps that led there.
func pullReason(err error) string {
	var asked *url.Error
	var name *net.DNSError
	var dial *net.OpError
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return "there is no host " + name.Name
	case errors.As(err, &name):
		return "no name server tells the address of " + name.Name
	case errors.As(err, &dial) && errors.As(err, &asked):
		host := asked.URL
		if u, err := url.Parse(asked.URL); err == nil {
			host = u.Host
		}
		return host + " cannot be reached: " + innermost(dial).Error()
	}
	return err.Error()
}

func innermost(err error) error {
	for {
		within := errors.Unwrap(err)
		if within == nil {
			return err
		}
		err = within
	}
}

func (d *Driver) registryHosts() docker.RegistryHosts {
	client := d.registries
	usual := docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost), docker.WithClient(client),
		docker.WithAuthorizer(docker.NewDockerAuthorizer(docker.WithAuthClient(client))))
	return func(host string) ([]docker.RegistryHost, error) {
		if d.opt.Registry == nil {
			return usual(host)
		}
		reg, ok := d.opt.Registry(host)
		if !ok {
			return usual(host)
		}
		u, err := url.Parse(reg.URL)
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", host, err)
		}
		path := strings.TrimSuffix(u.Path, "/")
		if !strings.HasSuffix(path, "/v2") {
			path += "/v2"
		}
		return []docker.RegistryHost{{
			Client: reg.Client, Host: u.Host, Scheme: u.Scheme, Path: path, Header: reg.Header,
			Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		}}, nil
	}
}
