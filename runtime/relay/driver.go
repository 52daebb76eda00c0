// Package relay is the runtime of relay functions. One process, `onpath relay`, runs all
// relays of a node: an instance is a network namespace whose connections it takes over. It
// outlives the agent; a folder for each instance tells the next agent what there is.
package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/accel"
	"github.com/onpath/onpath/internal/boundlog"
	"github.com/onpath/onpath/internal/cgroup"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/wholefile"
)

// Device is the instance's device in its namespace, as the node names it.
const Device = "eth0"

// TenantLabel is the label of an instance that names its tenant.
const TenantLabel = "onpath.tenant"

// Options of a driver.
type Options struct {
	// Dir holds the process's socket and log, and a record for each instance. Required.
	Dir string
	// Program is the onpath program; "": the running one.
	Program string
	Log     *slog.Logger
}

// Driver is an onpath.Runtime.
type Driver struct {
	opt     Options
	http    *http.Client
	patient *http.Client // for answers that come when there is news

	mu   sync.Mutex
	runs map[string]*process
	pid  int // of the process; 0: none
	over chan struct{}
	// holds says that the process lets clients wait for their origin; an earlier version does not.
	holds bool

	former former // of a process that keeps no accounts
}

var _ onpath.Runtime = (*Driver)(nil)

// New opens the runtime. Adopt finds what an earlier one left.
func New(o Options) (*Driver, error) {
	if o.Dir == "" {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the runtime of relays has no folder")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of relays: %w", err)
	}
	d := &Driver{opt: o, runs: map[string]*process{}}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.socket())
	}}
	d.http, d.patient = &http.Client{Timeout: 10 * time.Second, Transport: transport}, &http.Client{Transport: transport}
	return d, nil
}

func (d *Driver) socket() string          { return filepath.Join(d.opt.Dir, "relay.sock") }
func (d *Driver) logFile() string         { return filepath.Join(d.opt.Dir, "relay.log") }
func (d *Driver) record(id string) string { return filepath.Join(d.opt.Dir, id+recordSuffix) }

const recordSuffix = ".json"

var safeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,75}$`)

// record is what is kept of an instance.
type record struct {
	Labels    map[string]string `json:"labels"`
	Instance  accel.Instance    `json:"instance"`
	Namespace string            `json:"namespace,omitempty"` // identity of the instance's
}

// Prepare implements onpath.Runtime: there is nothing to fetch.
func (d *Driver) Prepare(_ context.Context, spec *onpath.FunctionSpec, _ func(string)) error {
	if !spec.Traits().Relays {
		return onpath.Errorf(onpath.CodeUnsupported, "this runtime runs relays")
	}
	return nil
}

// Start implements onpath.Runtime.
func (d *Driver) Start(ctx context.Context, r onpath.RunSpec) (onpath.Process, error) {
	if !safeID.MatchString(r.ID) {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%q is no instance id: letters, digits, dash and underscore, at most 76", r.ID)
	}
	if !r.Spec.Traits().Relays {
		return nil, onpath.Errorf(onpath.CodeUnsupported, "instance %s: the function is not of kind relay", r.ID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := os.Stat(d.record(r.ID)); err == nil {
		return nil, onpath.Errorf(onpath.CodeExists, "instance %s exists", r.ID)
	}
	rec := record{Labels: r.Labels, Instance: accel.Instance{
		Tenant: r.Labels[TenantLabel], NetNS: r.NetNS, Device: Device, Work: r.Spec.RelayWork(),
	}}
	if rec.Instance.Work == nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the planner has not said what this relay does")
	}
	var err error
	if rec.Namespace, err = netnsrun.Identity(r.NetNS); err != nil {
		return nil, err
	}
	if err := d.run(ctx); err != nil {
		return nil, err
	}
	if err := d.keep(r.ID, rec); err != nil {
		return nil, err
	}
	if err := d.put(ctx, r.ID, rec.Instance); err != nil {
		return nil, errors.Join(err, os.Remove(d.record(r.ID)))
	}
	p := &process{d: d, id: r.ID, rec: rec, pid: d.pid, over: d.over, gone: make(chan struct{})}
	d.runs[r.ID] = p
	return p, nil
}

func (d *Driver) keep(id string, rec record) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := wholefile.Write(d.record(id), data, 0o600); err != nil {
		return fmt.Errorf("keep the record of instance %s: %w", id, err)
	}
	return nil
}

// startTimeout is how long the process may take until it answers.
const startTimeout = 10 * time.Second

// run has the process run. Callers hold mu.
func (d *Driver) run(ctx context.Context) error {
	if d.pid != 0 {
		select {
		case <-d.over:
			d.pid = 0
		default:
			return nil
		}
	}
	program := d.opt.Program
	if program == "" {
		program = "/proc/self/exe"
	}
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open the relays' log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program, "relay", "--socket", d.socket())
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the relays' process: %w", err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait()
	}()
	d.pid, d.over = cmd.Process.Pid, over
	d.bound(d.pid)
	wait := time.NewTimer(startTimeout)
	defer wait.Stop()
	for {
		if s, err := d.state(ctx); err == nil && s.Pid == d.pid {
			d.holds = s.Holds
			return nil
		}
		select {
		case <-over:
			return fmt.Errorf("the relays' process ended at once; see %s", d.logFile())
		case <-ctx.Done():
			return ctx.Err()
		case <-wait.C:
			return fmt.Errorf("the relays' process does not answer; see %s", d.logFile())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// group is the path of the process' control group.
func (d *Driver) group() string {
	return fmt.Sprintf("/onpath-relays-%x", sha256.Sum256([]byte(d.opt.Dir)))[:32]
}

// bound bounds the memory of the process, and has the kernel end it no later than others where
// memory is short: a process inherits what its agent has. Where that fails it runs all the same.
func (d *Driver) bound(pid int) {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("0"), 0)
	most := accel.MemoryBound()
	g, failed := cgroup.New(d.group(), &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &most}})
	if failed == nil {
		failed = g.Add(pid)
	}
	if err = errors.Join(err, failed); err != nil {
		d.opt.Log.Warn("the memory of the relays' process is not bounded", "err", err)
	}
}

func (d *Driver) state(ctx context.Context) (s accel.HostState, err error) {
	err = d.call(ctx, http.MethodGet, "/instances", nil, &s)
	return s, err
}

func (d *Driver) put(ctx context.Context, id string, is accel.Instance) error {
	return d.call(ctx, http.MethodPut, "/instances/"+id, is, nil)
}

// mayWait refuses to have clients wait by a process that does not know how. Callers hold mu.
func (d *Driver) mayWait(is accel.Instance) error {
	if d.holds || !is.Waits() {
		return nil
	}
	return onpath.Errorf(onpath.CodeUnsupported,
		"syn: wait is not in force, all else is: the relays' process %d is of an earlier version, "+
			"which answers clients at once; end it to change that (its connections are reset)", d.pid)
}

func (d *Driver) call(ctx context.Context, method, path string, in, out any) error {
	return d.ask(ctx, d.http, method, path, in, out)
}

// errUnknown is what a process of an earlier version says to what it does not know.
var errUnknown = errors.New("the relays' process is of an earlier version, which cannot say this")

func (d *Driver) ask(ctx context.Context, by *http.Client, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://relay"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := by.Do(req)
	if err != nil {
		return fmt.Errorf("speak to the relays' process: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return errUnknown
	}
	if res.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return fmt.Errorf("the relays' process refuses: %s", bytes.TrimSpace(why))
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(out)
}

// Adopt implements onpath.Runtime.
func (d *Driver) Adopt(ctx context.Context) (map[string]onpath.Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := wholefile.Clean(d.opt.Dir); err != nil {
		return nil, err
	}
	d.find(ctx)
	files, err := filepath.Glob(filepath.Join(d.opt.Dir, "*"+recordSuffix))
	if err != nil {
		return nil, err
	}
	running := map[string]bool{}
	if s, err := d.state(ctx); err == nil {
		for _, id := range s.Instances {
			running[id] = true
		}
	}
	out := map[string]onpath.Process{}
	for _, f := range files {
		id := strings.TrimSuffix(filepath.Base(f), recordSuffix)
		if p := d.runs[id]; p != nil {
			out[id] = p
			continue
		}
		var rec record
		data, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(data, &rec)
		}
		if err != nil {
			d.opt.Log.Warn("a relay's record cannot be read; the relay begins anew", "file", f, "err", err)
			_ = os.Remove(f)
			continue
		}
		p := &process{d: d, id: id, rec: rec, gone: make(chan struct{})}
		if p.pid, p.over = d.pid, d.over; !running[id] {
			p.pid, p.over = 0, closed
		}
		d.runs[id], out[id] = p, p
	}
	return out, nil
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// find takes over a process that an earlier agent started. Callers hold mu.
func (d *Driver) find(ctx context.Context) {
	if d.pid != 0 {
		return
	}
	s, err := d.state(ctx)
	if err != nil {
		return
	}
	over, err := watch(s.Pid)
	if err != nil {
		return
	}
	d.pid, d.over, d.holds = s.Pid, over, s.Holds
	d.bound(d.pid)
	if s.Used == nil {
		d.opt.Log.Info("the relays' process is of an earlier version, until it ends: its processor time is divided evenly, "+
			"and it does not say when it is full; to change it at once, end it (its connections are reset)", "pid", d.pid)
		d.former.begin(d.pid)
	}
}

// Exec implements onpath.Runtime.
func (d *Driver) Exec(_ context.Context, id string, _ onpath.ExecSpec) (int, error) {
	if _, err := os.Stat(d.record(id)); err != nil {
		return 0, onpath.Errorf(onpath.CodeNotFound, "there is no instance %s", id)
	}
	return 0, onpath.Errorf(onpath.CodeUnsupported, "a relay has no programs of its own to run")
}

// Logs implements onpath.Runtime: all relays of a node write into one log.
func (d *Driver) Logs(ctx context.Context, id string, v onpath.LogView, follow bool, w io.Writer) error {
	if _, err := os.Stat(d.record(id)); err != nil {
		return onpath.Errorf(onpath.CodeNotFound, "there is no instance %s", id)
	}
	w = boundlog.OwnTimes(w, v.Since)
	data, err := os.ReadFile(d.logFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	at := len(data)
	if lines := bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")); v.Tail >= 0 && len(lines) > v.Tail {
		data = bytes.Join(lines[len(lines)-v.Tail:], nil)
	}
	if _, err := w.Write(data); err != nil || !follow {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
		f, err := os.Open(d.logFile())
		if err != nil {
			continue
		}
		more, err := io.ReadAll(io.NewSectionReader(f, int64(at), 1<<20))
		f.Close()
		if at += len(more); err != nil {
			return err
		}
		if _, err := w.Write(more); err != nil {
			return err
		}
	}
}

// Close implements onpath.Runtime.
func (d *Driver) Close() error {
	d.http.CloseIdleConnections()
	return nil
}

// Remove implements onpath.Runtime.
func (d *Driver) Remove(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.find(ctx)
	if err := d.end(ctx); err != nil {
		return err
	}
	d.runs = map[string]*process{}
	d.http.CloseIdleConnections()
	return os.RemoveAll(d.opt.Dir)
}

// end ends the process, and deletes its control group. Callers hold mu.
func (d *Driver) end(ctx context.Context) error {
	if err := d.endProcess(ctx); err != nil {
		return err
	}
	if err := cgroup.Open(d.group()).Remove(); err != nil {
		d.opt.Log.Warn("the relays' control group stays", "err", err)
	}
	if err := accel.RemovePins(d.socket()); err != nil {
		d.opt.Log.Warn("what took the place of relays stays", "err", err)
	}
	return nil
}

func (d *Driver) endProcess(ctx context.Context) error {
	if d.pid == 0 {
		return nil
	}
	_ = d.call(ctx, http.MethodPost, "/end", nil, nil)
	select {
	case <-d.over:
	case <-time.After(3 * time.Second):
		// Its pid is not another's: it has been watched since it was this one's.
		_ = syscall.Kill(d.pid, syscall.SIGKILL)
		select {
		case <-d.over:
		case <-time.After(3 * time.Second):
			return fmt.Errorf("the relays' process %d does not end", d.pid)
		}
	}
	d.pid = 0
	return nil
}
