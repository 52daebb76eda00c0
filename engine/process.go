package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
)

// Process is what an engine's process is told by its arguments.
type Process struct {
	// Control is the number of the inherited descriptor of the control socket.
	Control int
	Empty   string // a folder that becomes the root; "" leaves the process as it is
	UID     int
	GID     int
}

// Arguments are what onpath is to be called with.
func (p Process) Arguments() []string {
	return []string{
		"engine", "--control", strconv.Itoa(p.Control), "--empty-root", p.Empty,
		"--uid", strconv.Itoa(p.UID), "--gid", strconv.Itoa(p.GID),
	}
}

// Main is an engine's process, until SIGTERM.
func (p Process) Main(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	f := os.NewFile(uintptr(p.Control), "control")
	if f == nil {
		return fmt.Errorf("start the engine: descriptor %d is not there", p.Control)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("start the engine: descriptor %d is no socket: %w", p.Control, err)
	}
	_ = f.Close()
	control, ok := l.(*net.UnixListener)
	if !ok {
		return fmt.Errorf("start the engine: descriptor %d is no Unix socket", p.Control)
	}
	control.SetUnlinkOnClose(false)
	if p.Empty != "" {
		if err := Isolate(p.Empty, p.UID, p.GID); err != nil {
			return err
		}
	}
	debug.SetGCPercent(50)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	e, err := New(log, os.Stdout)
	if err != nil {
		return err
	}
	go func() {
		if err := e.Listen(ctx, control); err != nil {
			log.Error("the control socket fails", "err", err)
		}
		stop()
	}()
	if err := e.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
