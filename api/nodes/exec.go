package nodes

import (
	"io"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/session"
)

// exec connects the caller with a command; the two speak frames that the server
// does not look into.
func (s *Nodes) exec(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, "command", "tty", "stdin")
	request := onpath.ExecRequest{Command: q.Values["command"], TTY: q.Boolean("tty"), Stdin: q.Boolean("stdin")}
	switch {
	case q.Err != nil:
		return q.Err
	case len(request.Command) == 0:
		return onpath.Errorf(onpath.CodeInvalid, "no command is given")
	case r.Header.Get("Upgrade") != session.ExecProtocol:
		return onpath.Errorf(onpath.CodeInvalid, "exec needs Upgrade: %s", session.ExecProtocol)
	}
	i, err := s.instance(r.Context(), r.PathValue("tenant"), r.PathValue("name"))
	if err != nil {
		return err
	}
	request.Instance = i.Metadata.Tenant + "/" + i.Metadata.Name
	err = s.router.WriteEntry(r.Context(), onpath.LogExec, i.Metadata.Tenant, onpath.KeyOf(i).String(), "command %s", request.Command[0])
	if err != nil {
		return err
	}
	c, err := s.d.Hub.Call(r.Context(), i.Spec.Node, onpath.OpExec, request)
	if err != nil {
		return err
	}
	defer c.Close()
	conn, err := session.Accept(w, session.ExecProtocol)
	if err != nil {
		return nil // the caller is gone
	}
	defer conn.Close()
	s.d.Log.Info("exec", "by", rights.WhoIs(r.Context()).URI(), "instance", request.Instance, "command", request.Command)
	go func() {
		_, _ = io.Copy(c, conn)
		_ = c.Close() // the caller is gone: end the command
	}()
	if _, err := io.Copy(conn, c); err != nil {
		_ = session.FailExec(conn, router.Stopped(r.Context(), err))
	}
	return nil
}
