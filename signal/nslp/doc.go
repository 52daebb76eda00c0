// Package nslp is NetServ's signalling application (NetServ §2.1, §3.2): the requests by
// which a publisher installs, removes and looks for modules on the way to a user, the
// stack of answers, and how requests are signed. Messages have a binary form, for GIST,
// and the paper's text form (Figure 3), for people; each is made from the other without
// loss.
//
// A Node is what a node on the way does with them. It is pure: whether a module can be
// installed, and what is installed, is told to it.
package nslp
