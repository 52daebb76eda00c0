"""The chain of README's five minutes, by a client generated from the API's document.

usage: chain.py SOCKET OBJECTS; the generated client is the package "generated".
Says what it has done on a line of its own, and goes on when it is sent a line.
"""
import json
import sys
import time

import httpx

from generated.client import Client
from generated.api.chains import delete_chain, get_chain, list_chains, put_chain
from generated.api.functions import delete_function, put_function
from generated.api.instances import list_instances
from generated.api.trace import trace
from generated.models.chain import Chain
from generated.models.function import Function
from generated.models.problem import Problem


def done(what):
    print(what, flush=True)
    sys.stdin.readline()


def checked(answer):
    if answer.status_code >= 300 or isinstance(answer.parsed, Problem):
        raise SystemExit(f"{answer.status_code}: {answer.content!r}")
    return answer.parsed


def conditions(chain):
    return {c.type_: c.status for c in chain.status.conditions}


socket, objects = sys.argv[1:]
function, chain = json.load(open(objects))
transport = httpx.HTTPTransport(uds=socket)
client = Client(base_url="http://onpath", httpx_args={"transport": transport})

where = {"tenant": "default", "client": client}
checked(put_function.sync_detailed(name="wall", body=Function.from_dict(function), **where))
wrong = json.loads(json.dumps(chain))
wrong["spec"]["through"][0]["instances"] = -1
refused = put_chain.sync_detailed(name="guarded", body=Chain.from_dict(wrong), **where)
if refused.status_code < 400 or not isinstance(refused.parsed, Problem):
    raise SystemExit(f"a wrong chain is answered with {refused.status_code}")
checked(put_chain.sync_detailed(name="guarded", body=Chain.from_dict(chain), **where))
for _ in range(300):
    now = checked(get_chain.sync_detailed(name="guarded", **where))
    states = [i.status.state for i in checked(list_instances.sync_detailed(client=client)).items]
    if now.status and conditions(now).get("Active") == "true" and states.count("ready") == 2:
        break
    time.sleep(0.1)
else:
    raise SystemExit(f"the chain is not active: {now.to_dict()}, instances {states}")
names = [c.metadata.name for c in checked(list_chains.sync_detailed(client=client)).items]
if "guarded" not in names:
    raise SystemExit(f"chains {names}")
done("in place")

way = checked(trace.sync_detailed(client=client, src="10.1.0.2", dst="10.9.0.2", protocol=6, dst_port=8080))
if "guarded" not in json.dumps(way.to_dict()):
    raise SystemExit(f"the trace is {way.to_dict()}")
checked(delete_chain.sync_detailed(name="guarded", **where))
checked(delete_function.sync_detailed(name="wall", **where))
done("deleted")
