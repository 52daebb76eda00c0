package onpath

// ImageHost is the name under which function images that were pushed to the
// server are referred to: server.onpath.internal/TENANT/NAME@sha256:…. It is no
// DNS name: nodes reach it through their own connection to the server.
const ImageHost = "server.onpath.internal"
