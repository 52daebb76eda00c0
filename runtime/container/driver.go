// Package container runs functions of kind container: unmodified Linux programs
// under containerd and runc, each joined to a network namespace that the node
// prepared.
//
// Containers belong to containerd and its shims, so they outlive the agent;
// Adopt finds them again. Where no containerd is configured the driver keeps a
// private one in its state directory, which likewise outlives the agent and is
// found again by its socket.
package container

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/exithook"
)

// DefaultNamespace is the containerd namespace used where Options names none.
const DefaultNamespace = "onpath"

// Registry says where the images of one registry name really are.
type Registry struct {
	// URL of the registry, "http://server" or "https://host:5000/v2" (a
	// missing /v2 is added).
	URL string
	// Client does the requests; nil: http.DefaultClient.
	Client *http.Client
	// Header is sent with every request (Authorization).
	Header http.Header
}

// Options configure a driver.
type Options struct {
	// Address of a containerd socket. Empty: a private containerd in
	// ContainerdDir.
	Address string
	// Namespace in containerd; default DefaultNamespace. Nothing outside it is
	// touched.
	Namespace string
	// StateDir keeps logs and scratch mounts; required.
	StateDir string
	// ContainerdDir keeps the private containerd; default StateDir/containerd.
	// Several agents of one machine may share one.
	ContainerdDir string
	// Name tells this driver's containers from those of other drivers on the
	// same containerd; default "node".
	Name string
	// Log; default slog.Default().
	Log *slog.Logger
	// Registry maps the host part of an image reference to a registry; nil or
	// false means the host itself, by https.
	Registry func(host string) (Registry, bool)
	// HostImage permits functions with image: host, which see the node's root
	// file system read-only. For laboratories: it shows the operator's files.
	HostImage bool
	// Hide lists directories of the node that image: host must not show,
	// beside StateDir, ContainerdDir, /root and /home.
	Hide []string
	// Snapshotter of containerd; default overlayfs.
	Snapshotter string
	// MaxLog bounds each of the two files of an instance's log, in bytes: the
	// one that is written to and the one before it. Default 16 MiB.
	MaxLog int64
}

func (o *Options) defaults() error {
	if o.StateDir == "" {
		return onpath.Errorf(onpath.CodeInvalid, "the container runtime needs a state directory")
	}
	dir, err := filepath.Abs(o.StateDir)
	if err != nil {
		return fmt.Errorf("state directory %s: %w", o.StateDir, err)
	}
	if strings.ContainsAny(dir, `,:\`) {
		return &onpath.Error{Code: onpath.CodeInvalid,
			Message: fmt.Sprintf("state directory %s has a comma, colon or backslash in its name, which file systems of containers "+
				"(overlayfs) cannot have", dir),
			Remedy: "give the node another one (stateDir)"}
	}
	o.StateDir = dir
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&o.Namespace, DefaultNamespace)
	set(&o.Name, "node")
	set(&o.ContainerdDir, filepath.Join(o.StateDir, "containerd"))
	set(&o.Snapshotter, "overlayfs")
	if o.ContainerdDir, err = filepath.Abs(o.ContainerdDir); err != nil {
		return fmt.Errorf("containerd directory: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.MaxLog == 0 {
		o.MaxLog = 16 << 20
	}
	return nil
}

// Driver implements onpath.Runtime.
type Driver struct {
	opt     Options
	log     *slog.Logger
	address string // of containerd
	client  *containerd.Client
	private *privateContainerd // nil with a configured containerd
	exits   *exithook.Watcher  // nil where the kernel has none

	// ctx ends with Close; background goroutines live as long.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	begins sync.WaitGroup // programs that have begun and that containerd does not know of yet

	mu       sync.Mutex
	procs    map[string]*process
	starting map[string]bool
	fetching keyedLock
	bounds   bounds // of images
	// registries is how those are asked that are not the server's; connects is called
	// before each connection to one.
	registries *http.Client
	connects   func(ctx context.Context, to netip.AddrPort) (ends func())
}

var _ onpath.Runtime = (*Driver)(nil)

// dialTimeout is how long containerd may take to take a connection.
const dialTimeout = 3 * time.Second

// New connects to containerd, starting a private one if none is configured.
func New(ctx context.Context, opt Options) (*Driver, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	for _, dir := range []string{"instances", "fifo", "tmp"} {
		if err := os.MkdirAll(filepath.Join(opt.StateDir, dir), 0o711); err != nil {
			return nil, fmt.Errorf("container runtime: %w", err)
		}
	}
	d := &Driver{opt: opt, log: opt.Log.With("runtime", "container"), procs: map[string]*process{}, starting: map[string]bool{},
		fetching: keyedLock{held: map[string]chan struct{}{}}, bounds: imageBounds}
	d.BeforeConnect(nil)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	address := opt.Address
	if address == "" {
		d.private = newPrivate(opt, d.log)
		address = d.private.socket
		if err := d.private.ensure(ctx); err != nil {
			d.cancel()
			return nil, err
		}
	}
	d.address = address
	client, err := containerd.New(address, containerd.WithDefaultNamespace(opt.Namespace), containerd.WithTimeout(dialTimeout))
	if err != nil {
		d.cancel()
		return nil, &onpath.Error{Code: onpath.CodeUnavailable,
			Message: fmt.Sprintf("cannot reach containerd at %s: %v", address, err), Cause: err}
	}
	d.client = client
	if err := d.ping(ctx, address); err != nil {
		client.Close()
		d.cancel()
		return nil, err
	}
	if d.exits, err = exithook.New(); err != nil {
		d.log.Info("the end of a program is noticed when the kernel has cleared it away, not when it begins", "err", err)
	}
	d.goes(d.exits.Run)
	if d.private != nil {
		d.goes(d.keepContainerd)
	}
	d.goes(d.boundOlder)
	d.goes(d.keepDisk)
	return d, nil
}

func (d *Driver) ping(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	v, err := d.client.Version(d.scope(ctx))
	if err != nil {
		return &onpath.Error{Code: onpath.CodeUnavailable, Message: fmt.Sprintf("containerd at %s does not answer: %v", address, err),
			Remedy: "check that it runs and that this user may use its socket", Cause: err}
	}
	d.log.Info("containerd found", "address", address, "version", v.Version, "private", d.private != nil)
	return nil
}

// goes runs f until the driver is closed.
func (d *Driver) goes(f func(context.Context)) {
	d.wg.Go(func() { f(d.ctx) })
}

// scope puts the containerd namespace into ctx, and a logger that keeps the
// client library from writing to our standard error: what matters is in errors.
func (d *Driver) scope(ctx context.Context) context.Context {
	return log.WithLogger(namespaces.WithNamespace(ctx, d.opt.Namespace), quiet)
}

var quiet = func() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}()

// Close lets go; containers and a private containerd go on running.
func (d *Driver) Close() error {
	d.cancel()
	d.begins.Wait()
	err := d.client.Close()
	d.wg.Wait()
	return err
}

var safeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,75}$`)

func checkRun(r onpath.RunSpec) error {
	if !safeID.MatchString(r.ID) {
		return onpath.Errorf(onpath.CodeInvalid, "%q is no instance id: letters, digits, dot, dash and underscore, at most 76", r.ID)
	}
	if r.Spec.Container == nil {
		return onpath.Errorf(onpath.CodeUnsupported, "instance %s: the function is not of kind container", r.ID)
	}
	return nil
}

func (d *Driver) instanceDir(id string) string { return filepath.Join(d.opt.StateDir, "instances", id) }

func (d *Driver) lookup(id string) (*process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.procs[id]
	if !ok {
		return nil, onpath.Errorf(onpath.CodeNotFound, "there is no instance %s on this machine", id)
	}
	return p, nil
}

func (d *Driver) forget(p *process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.procs[p.id] == p {
		delete(d.procs, p.id)
	}
}
