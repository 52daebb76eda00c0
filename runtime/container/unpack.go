package container

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/onpath/onpath"
)

// bounds of one image. What reaches one is refused, and of it nothing stays.
type bounds struct {
	pulled   int64 // bytes of what is fetched for it
	document int64 // bytes of a manifest or a configuration
	unpacked int64 // bytes of its files, and of the archives that they come in
	files    int64 // number, folders and links among them
	// Above small bytes, what is unpacked may be ratio times as much as what it is unpacked from.
	small, ratio int64
}

var imageBounds = bounds{pulled: 8 << 30, document: 4 << 20, unpacked: 16 << 30, files: 1 << 20, small: 1 << 30, ratio: 100}

func tooLarge(format string, args ...any) error {
	return &onpath.Error{Code: onpath.CodeInvalid, Message: fmt.Sprintf(format, args...), Remedy: "use a smaller image"}
}

// unpacking bounds the unpacking of one image. containerd's client takes it for the service
// that applies layers.
type unpacking struct {
	diff.Comparer // none: nothing here compares
	bounds        bounds
	content       content.Provider

	packed, stream, size, files atomic.Int64
}

// bounded is a client for one image, to be closed.
func (d *Driver) bounded() (*containerd.Client, error) {
	u := &unpacking{bounds: d.bounds, content: d.client.ContentStore()}
	return containerd.New(d.address, containerd.WithDefaultNamespace(d.opt.Namespace), containerd.WithTimeout(dialTimeout),
		containerd.WithServices(containerd.WithDiffService(u)))
}

// Apply implements diff.Applier. Names and links are resolved within the layers.
func (u *unpacking) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount,
	_ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	blob, err := u.content.ReaderAt(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer blob.Close()
	u.packed.Add(blob.Size())
	var p diff.StreamProcessor = diff.NewProcessorChain(desc.MediaType, io.NopCloser(content.NewReader(blob)))
	for p.MediaType() != ocispec.MediaTypeImageLayer {
		if p, err = diff.GetProcessor(ctx, p, nil); err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("layer of type %s: %w", desc.MediaType, err)
		}
		defer p.Close()
	}
	sum := digest.Canonical.Digester()
	r := &countedReader{u: u, r: io.TeeReader(p, sum.Hash())}
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		if _, err := archive.Apply(ctx, root, r, archive.WithFilter(u.entry)); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, r) // what stands behind the archive's end belongs to its digest
		return err
	})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Size: r.n, Digest: sum.Digest()}, nil
}

// entry counts a file before it is written, and says whether it is. Devices are not, nor what
// only overlayfs may write of its layers.
func (u *unpacking) entry(h *tar.Header) (bool, error) {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "SCHILY.xattr.trusted.") {
			delete(h.PAXRecords, k)
		}
	}
	if u.files.Add(1) > u.bounds.files {
		return false, tooLarge("it has more than %d files", u.bounds.files)
	}
	if u.size.Add(max(h.Size, 0)) > u.bounds.unpacked { // also of sparse files
		return false, tooLarge("its files have more than %s", onpath.Size(u.bounds.unpacked))
	}
	return h.Typeflag != tar.TypeBlock && h.Typeflag != tar.TypeChar, nil
}

// countedReader reads the archive that a layer is.
type countedReader struct {
	u *unpacking
	r io.Reader
	n int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	u := c.u
	switch all := u.stream.Add(int64(n)); {
	case all > u.bounds.unpacked:
		return n, tooLarge("it unpacks to more than %s", onpath.Size(u.bounds.unpacked))
	case all > u.bounds.small && all/u.bounds.ratio > u.packed.Load():
		return n, tooLarge("it unpacks to more than %d times what it is unpacked from", u.bounds.ratio)
	}
	return n, err
}

// declared refuses what is too large or no image before it is fetched, for one image. What comes has the
// size that was declared, or is not kept.
func (b bounds) declared(next images.Handler) images.Handler {
	var all atomic.Int64
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if !images.IsLayerType(desc.MediaType) && desc.Size > b.document {
			return nil, tooLarge("a part of it, of type %s, has more than %s", desc.MediaType, onpath.Size(b.document))
		}
		if all.Add(desc.Size) > b.pulled {
			return nil, tooLarge("its layers have more than %s", onpath.Size(b.pulled))
		}
		parts, err := next.Handle(ctx, desc)
		if err == nil && images.IsManifestType(desc.MediaType) && len(parts) > 0 && !images.IsConfigType(parts[0].MediaType) {
			return nil, artifact(parts[0].MediaType)
		}
		return parts, err
	})
}

// outward is how registries are reached that are not the server's: not at addresses of links,
// where a cloud tells each machine its secrets. Loopback only by its name.
func (d *Driver) outward() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		ip, err := netip.ParseAddr(host)
		local := host == "localhost" || err == nil && ip.IsLoopback()
		told := &toldConn{}
		dialer := net.Dialer{Timeout: 30 * time.Second, ControlContext: func(ctx context.Context, _, to string, _ syscall.RawConn) error {
			a, err := netip.ParseAddrPort(to)
			if err != nil {
				return err
			}
			if ip := a.Addr().Unmap(); ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() && !local {
				return onpath.Errorf(onpath.CodeForbidden, "%s leads to %s, where no registry is", host, ip)
			}
			if d.connects != nil {
				told.add(d.connects(ctx, netip.AddrPortFrom(a.Addr().Unmap(), a.Port())))
			}
			return nil
		}}
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			told.end()
			return nil, err
		}
		told.Conn = c
		return told, nil
	}
	t.IdleConnTimeout, t.MaxConnsPerHost = idleRegistry, mostToRegistry
	return t
}

// What one registry gets of the connections of which the node is told, and how long one
// stays open for the next layer.
const (
	mostToRegistry = 16
	idleRegistry   = 10 * time.Second
)

// toldConn is a connection of which the node is told: of each address that was tried.
type toldConn struct {
	net.Conn
	mu   sync.Mutex
	ends []func()
	over bool
}

func (c *toldConn) add(ends func()) {
	c.mu.Lock()
	over := c.over
	c.ends = append(c.ends, ends)
	c.mu.Unlock()
	if over { // another address was quicker
		ends()
	}
}

func (c *toldConn) end() {
	c.mu.Lock()
	c.over = true
	ends := c.ends
	c.mu.Unlock()
	for _, f := range ends {
		f()
	}
}

// Close tells the node once the connection is closed.
func (c *toldConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// BeforeConnect implements onpath.Connecting.
func (d *Driver) BeforeConnect(f func(ctx context.Context, to netip.AddrPort) (ends func())) {
	d.connects = f
	d.registries = &http.Client{Transport: d.outward()}
}

// refusal is the refusal that err has inside, in which containerd's steps are not told.
func refusal(err error) error {
	var e *onpath.Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}
