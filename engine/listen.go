package engine

import (
	"context"
	"net"
	"os"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/afxdp"
	"github.com/onpath/onpath/engine/control"
)

// Listen answers requests at the control socket until ctx ends.
func (e *Engine) Listen(ctx context.Context, l *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go e.converse(ctx, c)
	}
}

func (e *Engine) converse(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	for {
		var r control.Request
		files, err := control.Read(c, &r)
		if err != nil {
			return
		}
		if r.Op == "supply" {
			closeFiles(files)
			e.supply.serve(c)
			return
		}
		if err := control.Write(c, e.answer(ctx, r, files), nil); err != nil {
			return
		}
	}
}

func (e *Engine) answer(ctx context.Context, r control.Request, files []*os.File) (a control.Answer) {
	var err error = onpath.Errorf(onpath.CodeInvalid, "ask the engine: %q is not attach, disk, set, serve, status or supply", r.Op)
	switch {
	case r.Op == "attach" && r.Device != nil:
		err = e.attach(ctx, *r.Device, files)
		files = nil
	case r.Op == "disk" && len(files) == 1:
		err = e.keepBlobs(files[0], r.Disk)
		files = nil
	case r.Op == "set" && r.Config != nil:
		err = e.Set(ctx, *r.Config)
	case r.Op == "serve":
		err = e.Serve(ctx, r.Served, files)
	case r.Op == "status":
		var s control.Status
		s, err = e.Status(ctx)
		a.Status = &s
	}
	closeFiles(files)
	if err != nil {
		a = control.Answer{Code: onpath.CodeOf(err), Error: err.Error()}
	}
	return a
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// attach takes files over: socket, frames and link, then sockets to serve by.
func (e *Engine) attach(ctx context.Context, d control.Device, files []*os.File) error {
	if len(files) < 4 {
		closeFiles(files)
		return onpath.Errorf(onpath.CodeInvalid, "attach the engine: %d files came, and four are needed", len(files))
	}
	s, err := adopt(d.Served, files[3:])
	closeFiles(files[3:])
	if err == nil {
		err = e.Attach(ctx, d, &afxdp.Files{Socket: files[0], Memory: files[1], Link: files[2]}, s)
	} else {
		closeFiles(files[:3])
	}
	if err != nil {
		s.close()
	}
	return err
}
