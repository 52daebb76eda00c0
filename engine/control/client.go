package control

import (
	"context"
	"fmt"
	"net"
	"os"
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
