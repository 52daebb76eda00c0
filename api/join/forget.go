package join

import (
	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// Forget keeps deleted nodes from coming back by themselves, and users and notifications of
// a deleted tenant from being those of the next one with its name.
func (s *Join) Forget(writes []onpath.Change) {
	for _, c := range writes {
		switch {
		case c.Object != nil:
		case c.Key.Kind == onpath.KindNode:
			s.ForgetNode(c.Key.Name)
		case c.Key.Kind == onpath.KindTenant:
			s.forgetTenant(c.Key.Name)
		}
	}
}

func (s *Join) forgetTenant(name string) {
	if s.d.Notifications != nil {
		if err := s.d.Notifications.Forget(name); err != nil {
			s.d.Log.Error("the notifications of a deleted tenant could not be deleted", "tenant", name, "error", err)
		}
	}
	if s.d.Authority == nil {
		return
	}
	gone, err := s.d.Authority.RevokeTenant(name)
	if err != nil {
		s.d.Log.Error("the users of a deleted tenant could not be revoked", "tenant", name, "error", err)
	}
	for _, uri := range gone {
		s.router.EndRequests(uri)
	}
}

// ForgetNode keeps a deleted node from coming back by itself.
func (s *Join) ForgetNode(name string) {
	if s.d.Authority != nil {
		err := s.d.Authority.Revoke(auth.Identity{Role: auth.RoleNode, Name: name}.URI())
		if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
			s.d.Log.Error("the certificate of a deleted node could not be revoked", "node", name, "error", err)
		}
	}
	s.d.Hub.Disconnect(name, "the node was deleted")
}
