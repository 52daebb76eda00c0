package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// The limits of an embedded etcd.
const (
	// maxRequest is the largest transaction in bytes; onpath.MaxWrite objects
	// of ordinary size, or a few with large files.
	maxRequest = 10 << 20
	// maxOps is the largest transaction in operations: changes, as many guards and
	// records, and the id of the request.
	maxOps = 2*onpath.MaxWrite + 1
	// history is how many revisions stay for watchers to resume from; older
	// ones are compacted every five minutes, and the space is used again. Large
	// ones go before (historyPart).
	history = "10000"
	// readyTimeout is for replaying the log of a large store on a slow disk.
	readyTimeout = 60 * time.Second
	// slowOpen is how long opening may take before it is spoken of.
	slowOpen = 3 * time.Second
	// stopTimeout is what an etcd that does not get ready has to end in.
	stopTimeout = 10 * time.Second
)

// embedded is an etcd server in this process, of one member, without listeners.
type embedded struct {
	dir     string
	reserve int64
	room    *room
	spare   *spare
	lock    *os.File
	etcd    *embed.Etcd
	client  *clientv3.Client
	filesMu sync.RWMutex
	files   opened
	log     *slog.Logger
	up      atomic.Bool
	first   atomic.Bool   // this process made the store
	failed  chan struct{} // closed with the first fatal

	rewriting rewriting

	mu    sync.Mutex
	cause string // why it stopped by itself
}

func startEmbedded(ctx context.Context, o Options) (*embedded, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "data directory %s cannot be made: %w", o.Dir, err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	e := &embedded{dir: o.Dir, reserve: o.Reserve, room: newRoom(o.Quota), spare: newSpare(o.Dir, o.Spare), lock: lock,
		log: o.Logger, failed: make(chan struct{})}
	if err := e.start(ctx, o.Logger); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return e, nil
}

// lockDir keeps a second server out of the directory. The kernel releases the
// lock with the process, whatever its end.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "data directory %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid := make([]byte, 20)
		n, _ := f.ReadAt(pid, 0)
		_ = f.Close()
		e := onpath.Errorf(onpath.CodeExists, "another onpath server (process %s) uses the data directory %s",
			strings.TrimSpace(string(pid[:n])), dir)
		e.Remedy = "stop it first, or give this one another directory"
		return nil, e
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(fmt.Sprintf("%d\n", os.Getpid())), 0)
	return f, nil
}

func (e *embedded) config(dir string, log *slog.Logger) *embed.Config {
	c := embed.NewConfig()
	c.Name = "onpath"
	c.Dir = dir
	// No listener of any kind; the member's peer URL is a name only.
	self := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{self}, []url.URL{self}
	c.InitialCluster = c.Name + "=" + self.String()
	c.InitialClusterToken = "onpath"
	// A single member elects itself: short ticks only shorten the start.
	c.TickMs, c.ElectionMs = 10, 100
	// etcd's own quota has no way back: Store keeps one (quota.go).
	c.QuotaBackendBytes, c.MaxRequestBytes, c.MaxTxnOps = -1, maxRequest, maxOps
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModeRevision, history
	// No other member catches up, so few entries stay in memory and on disk.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 1000, 10
	c.MaxWalFiles, c.MaxSnapFiles = 2, 2
	c.BackendBatchInterval = 100 * time.Millisecond
	c.WarningApplyDuration, c.WarningUnaryRequestDuration = time.Second, 2*time.Second
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(log, &e.up, &e.first, e.fatal))
	return c
}

// start makes the store if there is none, and opens it.
func (e *embedded) start(ctx context.Context, log *slog.Logger) error {
	there, err := holdsFiles(filepath.Join(e.dir, dataDir))
	if err != nil {
		return e.startFailed(err)
	}
	p := anyWrite
	if there {
		p = deletion // or nothing could be deleted
	}
	if err := e.checkSpace(p); err != nil {
		return err
	}
	began := time.Now()
	if err := e.makeNew(ctx, log); err != nil {
		return err
	}
	dir := filepath.Join(e.dir, dataDir)
	if err := check(dir); err != nil {
		return e.startFailed(err)
	}
	if e.etcd, err = e.open(ctx, dir, log); err != nil {
		return e.startFailed(err)
	}
	if e.files, err = openedIn(e.dir); err != nil {
		e.etcd.Close()
		return e.startFailed(err)
	}
	e.client = v3client.New(e.etcd.Server)
	if err := e.disarm(ctx); err != nil {
		e.etcd.Close()
		return e.startFailed(err)
	}
	e.up.Store(true)
	log.Info("store ready", "dir", e.dir, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

func (e *embedded) startFailed(err error) error {
	f := onpath.Errorf(onpath.CodeUnavailable, "the store in %s cannot be opened: %w", e.dir, err)
	f.Remedy = "if a disk fault damaged it, restore the directory from a backup"
	if errors.Is(err, errEmpty) {
		f.Remedy = "if the server never came up with it, remove " + filepath.Join(e.dir, dataDir) +
			"; else restore the directory from a backup"
	}
	return f
}

// fatal is called where etcd would end the process: a write to its disk
// failed, or what it reads there is damaged. The store stays closed from then
// on, so that nothing is acknowledged that is not on disk.
func (e *embedded) fatal(message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == "" {
		e.cause = message
		close(e.failed)
	}
}

// why is what fatal was told first.
func (e *embedded) why() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

// broken says why the store stopped by itself; nil while it works.
func (e *embedded) broken() error {
	cause := e.why()
	if cause == "" {
		return nil
	}
	f := onpath.Errorf(onpath.CodeUnavailable, "the store in %s stopped: %s", e.dir, cause)
	if f.Remedy = "make sure the disk is healthy and has room, then restart the server"; cause == deleted {
		f.Remedy = e.savesWhatIsLeft()
	}
	return f
}

func (e *embedded) stop() {
	e.etcd.Close()
	_ = e.lock.Close()
}
