package session

import (
	"fmt"
	"net"

	"github.com/onpath/onpath"
)

// register enters a node. A session that holds the name already gives way to the
// same agent, and to another of the same credential if its own does not answer:
// so does an agent that was started anew while its old connection hangs. Of two
// that live, the one that is connected stays, or they would throw each other out
// for ever.
func (h *Hub) register(c *conn) (*conn, error) {
	name, who := c.node, c.who
	switch {
	case name == "":
		return nil, onpath.Errorf(onpath.CodeInvalid, "the node has no name")
	case who.Node != "" && who.Node != name:
		return nil, onpath.Errorf(onpath.CodeForbidden, "the certificate is for node %s, not for %s", who.Node, name)
	case h.listener() == nil:
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the server is starting")
	}
	for {
		old, err := h.enter(c)
		if old == nil || err != nil {
			return c, err
		}
		if err := h.replace(old, c); err != nil {
			return nil, err
		}
	}
}

// replace ends the old session in favour of the new one, or says why not. Events
// name no ports: repeats are counted by their words.
func (h *Hub) replace(old, c *conn) error {
	name, from, at := c.node, host(c.who.Address), host(old.who.Address)
	if old.who.Credential != c.who.Credential {
		h.tell(name, "SessionRefused", fmt.Sprintf("%s also says that it is %s, with another credential than the connected one at %s; "+
			"it was refused", from, name, at))
		e := onpath.Errorf(onpath.CodeExists, "another machine with another credential is connected as node %s", name)
		e.Remedy = "give this one another name, or stop the other"
		return e
	}
	if c.agent != "" && c.agent == old.agent {
		h.log.Info("node connects anew", "node", name, "from", c.who.Address, "before", old.who.Address)
		old.close("the same agent has connected anew")
		<-old.done
		return nil
	}
	if old.answers() {
		h.tell(name, "SessionRefused", fmt.Sprintf("a second agent, at %s, says that it is %s; the one at %s is connected and answers, "+
			"so the second is refused: stop one of them, or give it another name and a token of its own", from, name, at))
		e := onpath.Errorf(onpath.CodeExists, "another agent is connected as node %s, from %s, and answers", name, at)
		e.Remedy = "stop one of the two, or give it another name and a token of its own"
		return e
	}
	h.tell(name, "SessionReplaced", fmt.Sprintf("another agent has joined as %s from %s; the one at %s does not answer", name, from, at))
	e := onpath.Errorf(onpath.CodeConflict, "another agent has joined as node %s from %s, and this one did not answer", name, from)
	e.Remedy = "stop one of the two, or give it another name and a token of its own"
	old.end(e)
	<-old.done
	return nil
}

// host is an address without its port, which is another one each time.
func host(address string) string {
	if h, _, err := net.SplitHostPort(address); err == nil {
		return h
	}
	return address
}
