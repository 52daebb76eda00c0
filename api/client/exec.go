package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/onpath/onpath/api/session"
)

// Exec runs a command in an instance and returns its exit code.
func (c *Client) Exec(ctx context.Context, tenant, name string, command []string, tty bool, e session.ExecIO) (int, error) {
	p := c.patient(ctx)
	defer p.end()
	conn, err := c.Dial(p.ctx)
	if err != nil {
		return 0, p.reason(err)
	}
	q := url.Values{"command": command, "tty": {strconv.FormatBool(tty)}, "stdin": {strconv.FormatBool(e.Stdin != nil)}}
	conn, err = session.Upgrade(p.ctx, conn, http.MethodGet, instancePath(tenant, name, "exec")+"?"+q.Encode(), session.ExecProtocol)
	if err != nil {
		return 0, p.reason(err)
	}
	defer conn.Close()
	code, err := session.RunExec(p.ctx, heardConn{conn, p}, e)
	if err != nil {
		return 0, p.reason(err)
	}
	return code, nil
}
