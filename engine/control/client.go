package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/onpath/onpath"
)

// Client speaks to one engine. It holds no connection between two requests.
type Client struct{ Path string }

// Attach hands an engine its device: the AF_XDP socket, its frames and its link, then a
// UDP socket to send by and one for each of d.Served.
func (c Client) Attach(ctx context.Context, d Device, files []*os.File) error {
	_, err := c.ask(ctx, Request{Op: "attach", Device: &d}, files)
	return err
}

// Set makes an engine's list of modules so, whole. On error the list before stays.
func (c Client) Set(ctx context.Context, config Config) error {
	_, err := c.ask(ctx, Request{Op: "set", Config: &config}, nil)
	return err
}

// Serve makes the ports that an engine serves so, whole; files are the sockets of new ports, in
// their order.
func (c Client) Serve(ctx context.Context, ports []onpath.ServedPort, files []*os.File) error {
	_, err := c.ask(ctx, Request{Op: "serve", Served: ports}, files)
	return err
}

// Disk hands an engine the file of its blobs, which may grow to size. One that has a file keeps
// that.
func (c Client) Disk(ctx context.Context, f *os.File, size onpath.Size) error {
	_, err := c.ask(ctx, Request{Op: "disk", Disk: size}, []*os.File{f})
	return err
}

// Supply opens connections for the engine's modules, by give, until ctx or the engine ends.
// give's file is closed.
func (c Client) Supply(ctx context.Context, give func(context.Context, Want) (*os.File, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.Path)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("the engine at %s: a connection of type %T", c.Path, conn)
	}
	if err := Write(uc, Request{Op: "supply"}, nil); err != nil {
		return err
	}
	var writing sync.Mutex
	places := make(chan struct{}, maxSupplies)
	for {
		var w Want
		files, err := Read(uc, &w)
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			return err
		}
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			g := Given{ID: w.ID}
			f, err := give(ctx, w)
			var with []*os.File
			if err != nil {
				var refused *RefusedError
				g.Error, g.Refused = err.Error(), errors.As(err, &refused)
			} else {
				defer f.Close()
				with = []*os.File{f}
			}
			writing.Lock()
			defer writing.Unlock()
			if Write(uc, g, with) != nil {
				cancel()
			}
		}()
	}
}

// maxSupplies is how many connections are opened for one engine at a time.
const maxSupplies = 256

// Status asks what an engine is doing.
func (c Client) Status(ctx context.Context) (Status, error) {
	a, err := c.ask(ctx, Request{Op: "status"}, nil)
	if err == nil && a.Status == nil {
		err = onpath.Errorf(onpath.CodeInternal, "the engine at %s answered without its status", c.Path)
	}
	if err != nil {
		return Status{}, err
	}
	return *a.Status, nil
}

// longest is how long an answer may take: as long as modules may take to compile.
const longest = time.Minute

func (c Client) ask(ctx context.Context, r Request, files []*os.File) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.Path)
	if err != nil {
		return a, onpath.Errorf(onpath.CodeUnavailable, "the engine at %s does not answer: %w", c.Path, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return a, fmt.Errorf("the engine at %s: a connection of type %T", c.Path, conn)
	}
	if err := Write(uc, r, files); err != nil {
		return a, onpath.Errorf(onpath.CodeUnavailable, "ask the engine at %s: %w", c.Path, err)
	}
	if _, err := Read(uc, &a); err != nil {
		return a, onpath.Errorf(onpath.CodeUnavailable, "the engine at %s did not answer: %w", c.Path, err)
	}
	if a.Code != "" {
		return a, onpath.Errorf(a.Code, "%s", a.Error)
	}
	return a, nil
}
