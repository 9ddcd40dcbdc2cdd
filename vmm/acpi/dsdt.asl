// The machine's devices, for the guest's ACPI interpreter. Compiled by iasl at build time. The numbers repeat
// vmm/layout.h.
DefinitionBlock ("dsdt.aml", "DSDT", 2, "SPINDL", "SPINDSDT", 0x00000001)
{
    // Soft off: SLP_TYP 5 in PM1 control (devices/legacy/acpi_pm.h).
    Name (_S5, Package () { 0x05, 0x05, 0x00, 0x00 })

    Scope (_SB)
    {
        Device (PCI0)
        {
            Name (_HID, EisaId ("PNP0A03"))
            Name (_UID, 0x00)
            Name (_BBN, 0x00)
            Name (_CRS, ResourceTemplate ()
            {
                WordBusNumber (ResourceProducer, MinFixed, MaxFixed, PosDecode, 0, 0, 0, 0, 1)
                IO (Decode16, 0x0CF8, 0x0CF8, 0x01, 0x08)
                WordIO (ResourceProducer, MinFixed, MaxFixed, PosDecode, EntireRange, 0, 0x0000, 0x0CF7, 0, 0x0CF8)
                WordIO (ResourceProducer, MinFixed, MaxFixed, PosDecode, EntireRange, 0, 0x0D00, 0xFFFF, 0, 0xF300)
                DWordMemory (ResourceProducer, PosDecode, MinFixed, MaxFixed, NonCacheable, ReadWrite,
                             0, 0xC0000000, 0xFEBFFFFF, 0, 0x3EC00000)
            })

            // Pin n of device d goes to I/O APIC pin 16 + (d + n) % 4 (vmm/pci_bus.cc). Written as a method, because
            // a table for 32 devices would be 128 lines of the same.
            Method (_PRT, 0, Serialized)
            {
                Local0 = Package (128) {}
                Local1 = 0
                While (Local1 < 128)
                {
                    Local2 = Package (4) { 0, 0, 0, 0 }
                    Local2 [0] = ((Local1 >> 2) << 16) | 0xFFFF
                    Local2 [1] = Local1 & 3
                    Local2 [3] = 16 + (((Local1 >> 2) + (Local1 & 3)) & 3)
                    Local0 [Local1] = Local2
                    Local1++
                }
                Return (Local0)
            }

            Device (ISA0)
            {
                Name (_ADR, 0x00010000)

                Device (COM1)
                {
                    Name (_HID, EisaId ("PNP0501"))
                    Name (_UID, 0x01)
                    Name (_CRS, ResourceTemplate ()
                    {
                        IO (Decode16, 0x03F8, 0x03F8, 0x00, 0x08)
                        IRQNoFlags () { 4 }
                    })
                }

                Device (RTC0)
                {
                    Name (_HID, EisaId ("PNP0B00"))
                    Name (_CRS, ResourceTemplate ()
                    {
                        IO (Decode16, 0x0070, 0x0070, 0x00, 0x02)
                        IRQNoFlags () { 8 }
                    })
                }

                Device (PVPN)
                {
                    Name (_HID, "QEMU0001")
                    Name (_STA, 0x0F)
                    Name (_CRS, ResourceTemplate ()
                    {
                        IO (Decode16, 0x0505, 0x0505, 0x01, 0x01)
                    })
                }

                // Ports that are taken by what needs no driver.
                Device (MISC)
                {
                    Name (_HID, EisaId ("PNP0C02"))
                    Name (_UID, 0x01)
                    Name (_CRS, ResourceTemplate ()
                    {
                        IO (Decode16, 0x0080, 0x0080, 0x00, 0x01)
                        IO (Decode16, 0x0092, 0x0092, 0x00, 0x01)
                        IO (Decode16, 0x0600, 0x0600, 0x00, 0x0C)
                    })
                }
            }
        }
    }
}
