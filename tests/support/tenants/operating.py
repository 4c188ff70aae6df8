"""Rules of what belongs to the operator: models, adapters, counts."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from plumbline.server.page.routes import OPEN_PATHS
from support.tenants.machine import WHO, YES, TenantMachine, drives
from support.tenants.world import alike

__all__ = ["OperatingRules"]


class OperatingRules(TenantMachine):
    """Rules of what belongs to the operator: models, adapters, counts."""

    @drives("listModels", "listRouterModels", "listFolderModels", "getCurrentModel", "retrieveModel")
    @rule(who=WHO, anthropic=YES)
    def models(self, who: int, anthropic: bool) -> None:
        """Models are those of the key, in both forms, and no others exist."""
        me = self.people[who]
        headers = {"anthropic-version": "2023-06-01"} if anthropic else {}
        expected = {"plainest", "alphaone", "betatwo", *self.world.adapters} & set(me.models)
        for operation in ("listModels", "listRouterModels", "listFolderModels"):
            found = self.run(self.world.want(me, operation, headers=headers)).json["data"]
            assert {each["id"] for each in found} == expected, operation
        for name in ("plainest", "alphaone", "betatwo", "annsadapter", "bobsadapter"):
            answer = self.run(self.world.ask(me, "retrieveModel", model=name, headers=headers))
            assert answer.status == (200 if name in expected else 404), (name, answer.body)
            if name not in expected:
                unknown = self.run(
                    self.world.ask(me, "retrieveModel", model="x" * len(name), headers=headers)
                )
                alike(answer, name, unknown, "x" * len(name))
        current = self.run(self.world.ask(me, "getCurrentModel"))
        assert current.status == 200 or current.error["code"] == "model_not_loaded"

    @drives(
        "loadLoraAdapter", "unloadLoraAdapter", "loadModel", "unloadModel", "streamModelLoad", "unloadModels"
    )
    @rule(who=WHO, adapter=st.sampled_from(["annsadapter", "bobsadapter"]))
    def load(self, who: int, adapter: str) -> None:
        """Only the admin loads and unloads; what was loaded exists for the keys that may use it."""
        me = self.people[who]
        load = {"lora_name": adapter, "lora_path": adapter}
        wanted = [
            ("loadLoraAdapter", load),
            ("unloadLoraAdapter", {"lora_name": adapter}),
            ("loadModel", {"model": "alphaone"}),
            ("unloadModel", {"model": "alphaone"}),
            ("streamModelLoad", {"name": "alphaone"}),
            ("unloadModels", None),
        ]
        for operation, body in wanted:
            answer = self.run(self.world.ask(me, operation, body))
            assert answer.status in (401, 403), (operation, answer.status, answer.body)
        for operation, body in wanted[2], wanted[4]:
            self.run(self.world.want(None, operation, body))
        if adapter in self.world.adapters:
            self.run(self.world.want(None, "unloadLoraAdapter", {"lora_name": adapter}))
            self.world.adapters.discard(adapter)
        else:
            self.run(self.world.want(None, "loadLoraAdapter", load))
            self.world.adapters.add(adapter)
            answer = self.run(
                self.world.ask(None, "loadLoraAdapter", {**load, "lora_name": "x", "lora_path": ".."})
            )
            assert answer.status == 400
            assert str(self.world.folder) not in answer.body.decode()

    @drives("getMetrics", "getVersion", "getOpenapiJson", "getOpenapiYaml")
    @rule(who=WHO)
    def look(self, who: int) -> None:
        """What counts the work of all keys is the operator's."""
        me = self.people[who]
        assert self.run(self.world.ask(me, "getMetrics")).status == 403
        seen = self.run(self.world.want(None, "getMetrics")).body
        assert b"plumbline_http_requests_total" in seen
        for operation in ("getVersion", "getOpenapiJson", "getOpenapiYaml"):
            self.run(self.world.want(me, operation))
        for path in ("/page/status", "/docs", "/", *OPEN_PATHS):
            answer = self.run(self.world.server.get(path, headers=me.headers))
            assert answer.status == 200
            if path == "/page/status":
                self.world.check(me, answer, "")
                assert answer.json["requests"] == []
                assert answer.json["memory_bytes"] is None
