package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// drainTime is how long output may still come after a command has ended: a
// child left behind could hold the pipe open for ever.
const drainTime = 2 * time.Second

// startLinger is how long a command may go on starting once nobody waits for it any
// more. When a start is given up on, containerd's client closes its ends of the pipes
// while the shim goes on and opens the other ones: it then waits for 30 s, and with it
// all that is asked about the command.
const startLinger = 5 * time.Second

// Exec implements onpath.Runtime.
func (d *Driver) Exec(ctx context.Context, id string, e onpath.ExecSpec) (int, error) {
	if len(e.Command) == 0 {
		return 0, onpath.Errorf(onpath.CodeInvalid, "no command given")
	}
	p, err := d.lookup(id)
	if err == nil {
		err = p.awaitTaken(ctx)
	}
	if err != nil {
		return 0, err
	}
	if p.ended() {
		return 0, gone(id)
	}
	sctx := d.scope(ctx)
	c, err := d.client.LoadContainer(sctx, id)
	if err != nil {
		return 0, execError(id, err)
	}
	task, err := c.Task(sctx, nil)
	if err != nil {
		return 0, execError(id, err)
	}
	spec, err := c.Spec(sctx)
	if err != nil {
		return 0, execError(id, err)
	}
	proc := spec.Process
	proc.Args, proc.Terminal = e.Command, e.TTY
	if e.TTY && !slices.ContainsFunc(proc.Env, func(v string) bool { return strings.HasPrefix(v, "TERM=") }) {
		proc.Env = append(proc.Env, "TERM=xterm")
	}
	if size := firstSize(ctx, e); size.Rows > 0 && size.Columns > 0 {
		proc.ConsoleSize = &specs.Box{Height: uint(size.Rows), Width: uint(size.Columns)}
	}
	in := &closingReader{r: e.Stdin, tty: e.TTY, closed: make(chan struct{})}
	starting, started := lingering(sctx, startLinger)
	defer started()
	x, err := task.Exec(starting, "x"+strings.ToLower(rand.Text()[:12]), proc, cio.NewCreator(d.streams(e, in)...))
	if err != nil {
		return 0, execError(id, err)
	}
	return runExec(sctx, starting, x, d.opt.StateDir, in, e)
}

// sizeTime is how long a terminal's first size may take to come behind the request.
const sizeTime = 250 * time.Millisecond

// firstSize is the size that a terminal begins with; none where nobody types at one.
func firstSize(ctx context.Context, e onpath.ExecSpec) (size onpath.WindowSize) {
	if !e.TTY || e.Stdin == nil || e.Resize == nil {
		return size
	}
	select {
	case size = <-e.Resize:
	case <-time.After(sizeTime):
	case <-ctx.Done():
	}
	return size
}

// resized gives a terminal each further size, until stop is closed.
func resized(ctx context.Context, x containerd.Process, sizes <-chan onpath.WindowSize, stop <-chan struct{}) {
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			_ = x.Resize(ctx, uint32(s.Columns), uint32(s.Rows)) // one that has just ended has no terminal
		case <-stop:
			return
		}
	}
}

// lingering gives a context that ends some time after ctx does.
func lingering(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(d):
			cancel()
		case <-out.Done():
		}
	})
	return out, func() {
		stop()
		cancel()
	}
}

func (d *Driver) streams(e onpath.ExecSpec, in *closingReader) []cio.Opt {
	var stdin io.Reader
	stdout, stderr := e.Stdout, e.Stderr
	if e.Stdin != nil {
		stdin = in
	}
	if stdout == nil {
		stdout = io.Discard
	}
	if stderr == nil {
		stderr = io.Discard
	}
	// Callers may give one writer for both, as os/exec lets them.
	var mu sync.Mutex
	stdout, stderr = &lockedWriter{&mu, stdout}, &lockedWriter{&mu, stderr}
	if e.TTY {
		stderr = nil
	}
	opts := []cio.Opt{cio.WithStreams(stdin, stdout, stderr), cio.WithFIFODir(filepath.Join(d.opt.StateDir, "fifo"))}
	if e.TTY {
		opts = append(opts, cio.WithTerminal)
	}
	return opts
}

// runExec runs a created process to its end and removes it, also when ctx ends
// before. It starts while starting lasts. dir is the driver's folder.
func runExec(ctx, starting context.Context, x containerd.Process, dir string, in *closingReader, e onpath.ExecSpec) (int, error) {
	defer func() {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		_, _ = x.Delete(tidy, containerd.WithProcessKill)
	}()
	exit, err := x.Wait(context.WithoutCancel(ctx)) // outlives ctx, for the end after a kill
	if err != nil {
		return 0, execError(x.ID(), err)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err := x.Start(starting); err != nil {
		return 0, commandError(e.Command[0], dir, err)
	}
	stop := make(chan struct{})
	defer close(stop)
	if e.TTY && e.Resize != nil {
		go resized(ctx, x, e.Resize, stop)
	}
	if e.Stdin != nil && !e.TTY { // to close a terminal would hang it up
		go func() {
			select {
			case <-in.closed:
				_ = x.CloseIO(ctx, containerd.WithStdinCloser)
			case <-stop:
			}
		}()
	}
	select {
	case status := <-exit:
		code, _, err := status.Result()
		if err != nil {
			return 0, execError(x.ID(), err)
		}
		drain(x.IO())
		return int(code), nil
	case <-ctx.Done():
		return 0, ctx.Err() // the clean-up kills it
	}
}

func drain(stream cio.IO) {
	if stream == nil {
		return
	}
	all := make(chan struct{})
	go func() {
		stream.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(drainTime):
	}
}

func execError(id string, err error) error {
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return gone(id)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return unavailable("run a command in "+id, err)
}

// commandError tells a command that the instance cannot run (it has no such
// program, no room for it within its limits) from a runtime that could not try.
func commandError(command, dir string, err error) error {
	reason, tried := lastReason(err)
	code := onpath.CodeInvalid
	// Where runc cannot write its log, containerd repeats what that says of an
	// earlier command.
	other := strings.HasPrefix(reason, "exec") && !strings.Contains(reason, filepath.Base(command))
	switch {
	case full(dir):
		reason, tried = "no space is left at "+dir, false
	case other:
		reason, tried = "the container runtime failed and cannot say why; see its disk and its log", false
	}
	if !tried || slices.ContainsFunc(machinesFault, func(e unix.Errno) bool { return strings.Contains(reason, e.Error()) }) {
		code = onpath.CodeUnavailable
	}
	return &onpath.Error{Code: code, Message: fmt.Sprintf("cannot run %s: %s", command, inWords(reason)), Cause: err}
}

// noProgram is what runc says of a program that is not there.
var noProgram = regexp.MustCompile(`^exec: "([^"]*)": (executable file not found in \$PATH|stat .*: no such file or directory)$`)

// inWords is a reason of runc's in plain words, where there are any.
func inWords(reason string) string {
	if m := noProgram.FindStringSubmatch(reason); m != nil {
		return fmt.Sprintf("there is no program %s in its file system", m[1])
	}
	return reason
}

// machinesFault are reasons of runc that say nothing of the instance.
var machinesFault = []unix.Errno{unix.ENOSPC, unix.EROFS, unix.EIO, unix.EDQUOT, unix.ENFILE}

// full reports whether no file can be written in dir for want of space.
func full(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && (st.Bavail == 0 || st.Files > 0 && st.Ffree == 0)
}

// lastReason is the end of runc's long chain of messages; tried says that runc
// came as far as the command.
func lastReason(err error) (reason string, tried bool) {
	text := strings.TrimSuffix(err.Error(), ": unknown")
	const mark = "unable to start container process: "
	if i := strings.LastIndex(text, mark); i >= 0 {
		return text[i+len(mark):], true
	}
	return text, false
}

// closingReader tells when its reader has ended, so that the command inside can
// be told too. On a terminal that is the end-of-transmission character.
type closingReader struct {
	r      io.Reader
	tty    bool
	once   sync.Once
	closed chan struct{}
}

func (c *closingReader) Read(p []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, io.EOF
	default:
	}
	n, err := c.r.Read(p)
	if err == nil {
		return n, nil
	}
	c.once.Do(func() { close(c.closed) })
	if c.tty && n < len(p) {
		p[n] = 0x04
		return n + 1, nil
	}
	return n, err
}

// lockedWriter lets two streams end in one writer.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
